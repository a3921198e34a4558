// The online softmax of a warp's 16 rows over tiles of 128 keys, in wgmma's accumulator fragments.
// Source: PTX ISA, "Register fragments for wgmma.mma_async.m64nNk16"; arXiv:1805.02867.
#pragma once

#include "kernels/device/attention_tile.cuh"
#include "kernels/device/ptx.cuh"
#include "kernels/device/reduce.cuh"

#include <cstdint>

namespace pitstop::kernels {

// The online-softmax state of a multiplying thread's two rows (g and g + 8 of its warp's 16).
struct RowState {
    float max[2];
    float sum[2];     // this thread's part
    float factor[2];  // by which the last step scales earlier sums
};

// Turns scores into probabilities. 128 keys: 16 accumulator tiles of 4.
__device__ inline void softmax(float (&scores)[64], RowState& state, float scale_log2) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float max = state.max[r];
#pragma unroll
        for (int n = 0; n < 16; ++n)
            max = fmaxf(max, fmaxf(scores[n * 4 + 2 * r], scores[n * 4 + 2 * r + 1]));
        max = warp_max<4>(max);
        const float base = max == minus_infinity() ? 0.f : max * scale_log2;
        state.factor[r] = rescale_factor(state.max[r], max, scale_log2);
        float sum = state.sum[r] * state.factor[r];
#pragma unroll
        for (int n = 0; n < 16; ++n) {
#pragma unroll
            for (int e = n * 4 + 2 * r; e < n * 4 + 2 * r + 2; ++e) {
                scores[e] = exp2_approx(fmaf(scores[e], scale_log2, -base));
                sum += scores[e];
            }
        }
        state.max[r] = max;
        state.sum[r] = sum;
    }
}

__device__ inline void mask(
    float (&scores)[64],
    std::int32_t tile_begin,
    const std::int32_t (&first)[2],
    const std::int32_t (&last)[2]
) {
    const std::int32_t column = tile_begin + lane_index() % 4 * 2;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        const std::int32_t key = column + i / 4 * 8 + i % 2;
        const int r = i % 4 / 2;
        if (key < first[r] || key > last[r]) scores[i] = minus_infinity();
    }
}

// Packs the probabilities of 128 keys as eight A fragments of 16.
__device__ inline void pack_probabilities(std::uint32_t (&p)[8][4], const float (&scores)[64]) {
#pragma unroll
    for (int k16 = 0; k16 < 8; ++k16) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            p[k16][i] = pack_bf16x2(scores[k16 * 8 + i * 2], scores[k16 * 8 + i * 2 + 1]);
    }
}

}  // namespace pitstop::kernels
