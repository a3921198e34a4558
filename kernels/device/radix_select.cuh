// Finds the threshold such that a block's numbers at or above it have a given weight: a radix
// select on their ordered images. A Source has `num` elements and source[i].x.
#pragma once

#include "kernels/device/ordered.h"
#include "kernels/device/reduce.cuh"
#include "kernels/device/wide_sum.cuh"

#include <cuda_runtime.h>

#include <cstdint>

namespace pitstop::kernels {

inline constexpr int kDigits = 256;
struct Select {
    WideSum histogram[kDigits];
    std::uint32_t image_max;
    std::uint32_t image_min;
    std::uint32_t prefix;
    std::uint64_t above;  // weight of the images above those with the prefix
};

// Adds to the prefix the digit, from bit `low` on, at which the weight from above reaches the
// target. REQUIRES: one whole warp calls it; lane l looks at digits 8l .. 8l+7.
__device__ inline void choose_digit(Select& shared, std::uint64_t target, int low) {
    const int lane = lane_index();
    // Read before the shuffles, because one lane writes it later.
    const std::uint64_t known_above = shared.above;
    std::uint64_t sum = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) sum += shared.histogram[lane * 8 + k].value();
    std::uint64_t above = sum;  // in this lane's digits and all above
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
        const std::uint64_t other = __shfl_down_sync(kAllLanes, above, offset);
        if (lane + offset < kWarp) above += other;
    }
    above = above - sum + known_above;
    if (above >= target || above + sum < target) return;
    for (int k = 7; k >= 0; --k) {
        const std::uint64_t own = shared.histogram[lane * 8 + k].value();
        if (above + own >= target) {
            shared.prefix |= static_cast<std::uint32_t>(lane * 8 + k) << low;
            shared.above = above;
            return;
        }
        above += own;
    }
}

// Returns the largest x such that the ids at or above it together weigh at least `target`; weights
// are integers, so the order of the ids does not matter. The radix select processes 8-bit digits of
// the images, from the highest one in which two images differ. REQUIRES: 1 <= target <= the weight
// of all; the whole block calls it.
template <int kBlockThreads, class Source, class Weight>
__device__ float select_threshold(
    Select& shared, const Source& source, std::uint64_t target, const Weight& weight
) {
    const int thread = static_cast<int>(threadIdx.x);
    __syncthreads();
    if (thread == 0) {
        shared.image_max = 0;
        shared.image_min = ~0u;
        shared.above = 0;
    }
    __syncthreads();
    std::uint32_t image_max = 0;
    std::uint32_t image_min = ~0u;
    for (std::int32_t i = thread; i < source.num; i += kBlockThreads) {
        const float x = source[i].x;
        if (weight(x) == 0) continue;
        image_max = max(image_max, ordered_image(x));
        image_min = min(image_min, ordered_image(x));
    }
    image_max = __reduce_max_sync(kAllLanes, image_max);
    image_min = __reduce_min_sync(kAllLanes, image_min);
    if (lane_index() == 0) {
        atomicMax(&shared.image_max, image_max);
        atomicMin(&shared.image_min, image_min);
    }
    __syncthreads();
    // the number of low bits in which images may differ
    int bits = kWarp - __clz(static_cast<int>(shared.image_max ^ shared.image_min));
    if (thread == 0)
        shared.prefix = bits == 32 ? 0 : shared.image_max & (bits == 0 ? ~0u : ~0u << bits);
    while (bits > 0) {
        const int width = min(bits, 8);
        const int low = bits - width;
        const std::uint32_t known = bits == 32 ? 0 : ~0u << bits;
        if (thread < kDigits) shared.histogram[thread] = {};
        __syncthreads();
        const std::uint32_t prefix = shared.prefix;
        for (std::int32_t i = thread; i < source.num; i += kBlockThreads) {
            const float x = source[i].x;
            const std::uint32_t image = ordered_image(x);
            if ((image & known) != prefix) continue;
            const std::uint64_t own = weight(x);
            if (own != 0) atomic_add(shared.histogram[image >> low & ((1u << width) - 1)], own);
        }
        __syncthreads();
        if (warp_index() == 0) choose_digit(shared, target, low);
        __syncthreads();
        bits = low;
    }
    __syncthreads();
    return from_ordered_image(shared.prefix);
}

template <int kBlockThreads, class Source, class Weight>
__device__ std::uint64_t total_weight(const Source& source, const Weight& weight) {
    std::uint64_t total = 0;
    for (std::int32_t i = static_cast<int>(threadIdx.x); i < source.num; i += kBlockThreads)
        total += weight(source[i].x);
    return block_sum<kBlockThreads>(total);
}

}  // namespace pitstop::kernels
