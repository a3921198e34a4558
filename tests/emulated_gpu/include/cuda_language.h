// The part of CUDA's language that kernels/ uses, as C++ for the emulator: the declarations that
// nvcc has without an include.
#pragma once

#include "tests/emulated_gpu/blocks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#define __CUDA_ARCH_FEAT_SM90_ALL 1  // features of sm_90a are emulated

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
// Blocks run one after the other, so a block's static shared memory is a static variable.
#define __shared__ static

#define threadIdx (::pitstop::emulator::current->index)

using dim3 = pitstop::emulator::Dim3;
inline const dim3& blockIdx = pitstop::emulator::block_index;
inline const dim3& blockDim = pitstop::emulator::block_dim;
inline const dim3& gridDim = pitstop::emulator::grid_dim;

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// ---- arithmetic ----

using std::exp;
using std::fmax;
using std::isnan;
using std::log;
using std::max;
using std::min;
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __frcp_rn(float a) { return 1.f / a; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __logf(float x) { return std::log(x); }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline float __uint_as_float(unsigned u) { return std::bit_cast<float>(u); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline unsigned long long __float2ull_rn(float x) {
    return static_cast<unsigned long long>(std::llrint(static_cast<double>(x)));
}
template <class T>
T __ldcg(const T* from) {
    return *from;
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    const std::uint64_t both = low | static_cast<std::uint64_t>(high) << 32;
    return static_cast<unsigned>(both >> (shift % 32));
}

// ---- barriers, shuffles, votes ----

inline void __syncthreads() { pitstop::emulator::block_barrier(); }
inline void __syncwarp() {
    pitstop::emulator::warp_instruction<int, int>("__syncwarp", 0, [](const int*, int*) {});
}
// Blocks run one after the other: a block's stores are visible to the next one.
inline void __threadfence() { pitstop::emulator::let_others_run(); }

namespace pitstop::emulator {
template <class T, class Source>
T shuffle(const char* name, unsigned mask, T value, Source source_of) {
    if (mask != ~0u) fail("a shuffle of fewer than all lanes");
    return warp_instruction<T, T>(name, value, [&](const T* in, T* out) {
        for (int lane = 0; lane < kLanes; ++lane) {
            const int source = source_of(lane);
            out[lane] = in[source < 0 || source >= kLanes ? lane : source];
        }
    });
}
}  // namespace pitstop::emulator

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask) {
    return pitstop::emulator::shuffle("__shfl_xor_sync", mask, value, [=](int l) {
        return l ^ lane_mask;
    });
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, int delta) {
    return pitstop::emulator::shuffle("__shfl_down_sync", mask, value, [=](int l) {
        return l + delta;
    });
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int delta) {
    return pitstop::emulator::shuffle("__shfl_up_sync", mask, value, [=](int l) {
        return l - delta;
    });
}
// Each lane names its own source lane, so `source` is an operand.
template <class T>
T __shfl_sync(unsigned mask, T value, int source) {
    struct Operand {
        T value;
        int source;
    };
    if (mask != ~0u) pitstop::emulator::fail("a shuffle of fewer than all lanes");
    return pitstop::emulator::warp_instruction<Operand, T>(
        "__shfl_sync",
        Operand{value, source},
        [](const Operand* in, T* out) {
            for (int lane = 0; lane < pitstop::emulator::kLanes; ++lane)
                out[lane] = in[in[lane].source % pitstop::emulator::kLanes].value;
        }
    );
}
inline unsigned __ballot_sync(unsigned, bool predicate) {
    return pitstop::emulator::warp_instruction<bool, unsigned>(
        "__ballot_sync",
        predicate,
        [](const bool* in, unsigned* out) {
            unsigned votes = 0;
            for (int lane = 0; lane < pitstop::emulator::kLanes; ++lane)
                votes |= static_cast<unsigned>(in[lane]) << lane;
            for (int lane = 0; lane < pitstop::emulator::kLanes; ++lane) out[lane] = votes;
        }
    );
}
template <class T>
T __reduce_max_sync(unsigned, T value) {
    return pitstop::emulator::warp_instruction<T, T>(
        "__reduce_max_sync",
        value,
        [](const T* in, T* out) {
            const T best = *std::max_element(in, in + pitstop::emulator::kLanes);
            std::fill_n(out, pitstop::emulator::kLanes, best);
        }
    );
}
template <class T>
T __reduce_min_sync(unsigned, T value) {
    return pitstop::emulator::warp_instruction<T, T>(
        "__reduce_min_sync",
        value,
        [](const T* in, T* out) {
            const T best = *std::min_element(in, in + pitstop::emulator::kLanes);
            std::fill_n(out, pitstop::emulator::kLanes, best);
        }
    );
}

// ---- atomics: one thread runs at a time; other threads get a turn before each ----

template <class T, class U>
T atomicAdd(T* to, U value) {
    pitstop::emulator::let_others_run();
    const T old = *to;
    *to = static_cast<T>(old + static_cast<T>(value));
    return old;
}
inline unsigned atomicInc(unsigned* to, unsigned last) {
    pitstop::emulator::let_others_run();
    const unsigned old = *to;
    *to = old >= last ? 0 : old + 1;
    return old;
}
template <class T>
T atomicMax(T* to, T value) {
    pitstop::emulator::let_others_run();
    const T old = *to;
    *to = std::max(old, value);
    return old;
}
template <class T>
T atomicMin(T* to, T value) {
    pitstop::emulator::let_others_run();
    const T old = *to;
    *to = std::min(old, value);
    return old;
}
