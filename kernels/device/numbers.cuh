// Loads and stores of a few consecutive numbers, through fp32, 16 bytes at a time if there
// are that many.
#pragma once

#include "base/bf16.h"
#include "kernels/device/ptx.cuh"

#include <cuda_runtime.h>

#include <cstdint>

namespace pitstop::kernels {

template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
    T v[N];
};
using Pack4F = Pack<float, 4>;
using Pack8H = Pack<bf16, 8>;
static_assert(sizeof(Pack4F) == 16 && sizeof(Pack8H) == 16);

__device__ inline void unpack_bf16x2(std::uint32_t pair, float& low, float& high) {
    low = __uint_as_float(pair << 16);
    high = __uint_as_float(pair & 0xffff0000u);
}

// REQUIRES: from is aligned to min(16, N * sizeof(T)) bytes.
template <int N>
__device__ void load_floats(const float* from, float (&to)[N]) {
    static_assert(N % 4 == 0);
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float4 pack = *reinterpret_cast<const float4*>(from + i);
        to[i] = pack.x, to[i + 1] = pack.y, to[i + 2] = pack.z, to[i + 3] = pack.w;
    }
}
template <int N>
__device__ void load_floats(const bf16* from, float (&to)[N]) {
    static_assert(N == 4 || N % 8 == 0);
    if constexpr (N == 4) {
        const uint2 pack = *reinterpret_cast<const uint2*>(from);
        unpack_bf16x2(pack.x, to[0], to[1]);
        unpack_bf16x2(pack.y, to[2], to[3]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 8) {
            const uint4 pack = *reinterpret_cast<const uint4*>(from + i);
            unpack_bf16x2(pack.x, to[i], to[i + 1]);
            unpack_bf16x2(pack.y, to[i + 2], to[i + 3]);
            unpack_bf16x2(pack.z, to[i + 4], to[i + 5]);
            unpack_bf16x2(pack.w, to[i + 6], to[i + 7]);
        }
    }
}

template <int N>
__device__ void store_floats(float* to, const float (&from)[N]) {
    static_assert(N % 4 == 0);
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        *reinterpret_cast<float4*>(to + i) =
            make_float4(from[i], from[i + 1], from[i + 2], from[i + 3]);
    }
}
template <int N>
__device__ void store_floats(bf16* to, const float (&from)[N]) {
    static_assert(N == 4 || N % 8 == 0);
    if constexpr (N == 4) {
        *reinterpret_cast<uint2*>(to) =
            make_uint2(pack_bf16x2(from[0], from[1]), pack_bf16x2(from[2], from[3]));
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 8) {
            *reinterpret_cast<uint4*>(to + i) = make_uint4(
                pack_bf16x2(from[i], from[i + 1]),
                pack_bf16x2(from[i + 2], from[i + 3]),
                pack_bf16x2(from[i + 4], from[i + 5]),
                pack_bf16x2(from[i + 6], from[i + 7])
            );
        }
    }
}

__device__ inline float load_float(const float* from) { return *from; }
__device__ inline float load_float(const bf16* from) { return to_float(*from); }
__device__ inline void store_float(float* to, float value) { *to = value; }
__device__ inline void store_float(bf16* to, float value) { *to = to_bf16(value); }

// Returns 1 for infinities and NaNs, else 0.
__device__ inline int is_nonfinite(float x) {
    constexpr unsigned kExponent = 0x7f800000u;
    return (__float_as_uint(x) & kExponent) == kExponent ? 1 : 0;
}

}  // namespace pitstop::kernels
