// Reductions over a warp and over a block, with the result in every lane. The order depends only on
// the number of threads: a butterfly in the warp, then the warps in ascending order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace pitstop::kernels {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int warp_index() { return static_cast<int>(threadIdx.x) / kWarp; }

// Sums over groups of kLanes neighbouring lanes. Every lane of a group gets the same bits: both
// sides of a butterfly add the same two numbers.
template <int kLanes = kWarp, class T>
__device__ T warp_sum(T value) {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2)
        value = value + __shfl_xor_sync(kAllLanes, value, offset);
    return value;
}

template <int kLanes = kWarp>
__device__ float warp_max(float value) {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2)
        value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
    return value;
}

// REQUIRES: all kThreads threads call it; kThreads is a multiple of kWarp. May be called
// again at once.
template <int kThreads, class T>
__device__ T block_sum(T value) {
    __shared__ T partial[kThreads / kWarp];
    value = warp_sum(value);
    __syncthreads();  // the reads of an earlier call are done
    if (lane_index() == 0) partial[warp_index()] = value;
    __syncthreads();
    T sum = partial[0];
#pragma unroll
    for (int warp = 1; warp < kThreads / kWarp; ++warp) sum = sum + partial[warp];
    return sum;
}

template <int kThreads>
__device__ float block_max(float value) {
    __shared__ float partial[kThreads / kWarp];
    value = warp_max(value);
    __syncthreads();
    if (lane_index() == 0) partial[warp_index()] = value;
    __syncthreads();
    float max = partial[0];
#pragma unroll
    for (int warp = 1; warp < kThreads / kWarp; ++warp) max = fmaxf(max, partial[warp]);
    return max;
}

}  // namespace pitstop::kernels
