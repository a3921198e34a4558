// The arithmetic of attention for one warp and 16 rows (a row: one query head of one token), in
// pieces that prefill and decode share, so that a row's bits are the same in both (P6). Every
// operation whose rounding could depend on how the compiler fuses it is spelled out.
//
// Fragments, with g = lane / 4 and c = 2 * (lane % 4): elements [0], [1] of an accumulator belong
// to row g, columns c and c + 1; [2], [3] to row g + 8. A 4-lane group has a row.
// Source: Dao 2023 (arXiv:2307.08691), algorithm 1; the merge of segments as in Flash-Decoding.
#pragma once

#include "kernels/device/ptx.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/swizzle.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace pitstop::kernels {

inline constexpr int kRowsPerWarp = 16;
inline constexpr int kKeysPerTile = 64;  // one online-softmax step
inline constexpr int kScoreTiles = kKeysPerTile / 8;

__device__ inline float minus_infinity() { return __uint_as_float(0xff800000u); }

// The online-softmax state of a warp's 16 rows: [0] is row g, [1] row g + 8. `max` is of the raw
// scores; `sum` is this thread's part until sum_over_row().
template <int D>
struct AttentionState {
    float max[2];
    float sum[2];
    float acc[D / 8][4];

    __device__ void clear() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            max[r] = minus_infinity();
            sum[r] = 0.f;
        }
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[n][e] = 0.f;
        }
    }
};

// Returns exp2(old_max - new_max) in scaled units; 1 if they are equal, 0 if there was
// nothing before.
__device__ inline float rescale_factor(float old_max, float new_max, float scale_log2) {
    const float base = new_max == minus_infinity() ? 0.f : __fmul_rn(new_max, scale_log2);
    return exp2_approx(__fsub_rn(__fmul_rn(old_max, scale_log2), base));
}

// Adds one step of 16 dimensions to the scores of 16 keys (two accumulator tiles). `keys` is a tile
// of D dimensions per row, swizzled; the 16 keys start at its row `key`.
template <int D>
__device__ void add_scores(
    float (&low)[4],
    float (&high)[4],
    const std::uint32_t (&q)[4],
    const std::byte* keys,
    int key,
    int k16
) {
    const int lane = lane_index();
    std::uint32_t b[4];  // keys 0-7 at dimensions 0-7 and 8-15, then keys 8-15
    load_matrices(
        b, keys + swizzled<D / 8>(key + lane % 8 + lane / 16 * 8, k16 * 2 + lane / 8 % 2)
    );
    mma_16x8x16(low, q, b[0], b[1]);
    mma_16x8x16(high, q, b[2], b[3]);
}

// Loads query fragment k16 (16 dimensions) of 16 rows of a swizzled tile. `queries` points to the
// first of these rows, at a multiple of 8 rows, where the swizzle repeats. So the addresses of a
// warp's tiles differ by a constant. An argument with a row number would need a register for each
// k16.
template <int D>
__device__ void load_query(std::uint32_t (&q)[4], const std::byte* queries, int k16) {
    const int lane = lane_index();
    load_matrices(q, queries + swizzled<D / 8>(lane % 16, k16 * 2 + lane / 16));
}

// Computes acc += p v for 16 keys. `low` and `high` are the probabilities of keys 0-7 and 8-15,
// rounded to bf16 here; `values` is a swizzled tile, whose row `key` has the first of the 16 keys'
// values.
template <int D>
__device__ void add_values(
    AttentionState<D>& state,
    const float (&low)[4],
    const float (&high)[4],
    const std::byte* values,
    int key
) {
    const std::uint32_t p[4] = {
        pack_bf16x2(low[0], low[1]),
        pack_bf16x2(low[2], low[3]),
        pack_bf16x2(high[0], high[1]),
        pack_bf16x2(high[2], high[3])};
    const int lane = lane_index();
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
        std::uint32_t b[4];  // dimensions 0-7 of keys 0-7 and 8-15, then dimensions 8-15
        load_matrices_transposed(b, values + swizzled<D / 8>(key + lane % 16, n * 2 + lane / 16));
        mma_16x8x16(state.acc[2 * n], p, b[0], b[1]);
        mma_16x8x16(state.acc[2 * n + 1], p, b[2], b[3]);
    }
}

// One online-softmax step over a tile's scores, which become probabilities; masked scores are -inf.
template <int D>
__device__ void softmax_step(
    AttentionState<D>& state, float (&scores)[kScoreTiles][4], float scale_log2
) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float max = state.max[r];
#pragma unroll
        for (int n = 0; n < kScoreTiles; ++n)
            max = fmaxf(max, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
        max = warp_max<4>(max);
        const float factor = rescale_factor(state.max[r], max, scale_log2);
        const float base = max == minus_infinity() ? 0.f : __fmul_rn(max, scale_log2);
        float sum = __fmul_rn(state.sum[r], factor);
#pragma unroll
        for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; ++e) {
                scores[n][e] = exp2_approx(__fmaf_rn(scores[n][e], scale_log2, -base));
                sum = __fadd_rn(sum, scores[n][e]);
            }
        }
        state.max[r] = max;
        state.sum[r] = sum;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; ++e)
                state.acc[n][e] = __fmul_rn(state.acc[n][e], factor);
        }
    }
}

// After the last step, sums `sum` over the four lanes of a row; each lane gets the total.
template <int D>
__device__ void sum_over_row(AttentionState<D>& state) {
#pragma unroll
    for (int r = 0; r < 2; ++r) state.sum[r] = warp_sum<4>(state.sum[r]);
}

// The factors by which a later segment changes a merged state: total = total * a + segment * b. A
// segment without a visible key leaves the total unchanged. The first segment with one becomes the
// total.
struct MergeFactors {
    float max;
    float a;
    float b;
};
__device__ inline MergeFactors merge_factors(float total_max, float segment_max, float scale_log2) {
    const float max = fmaxf(total_max, segment_max);
    return {
        max,
        rescale_factor(total_max, max, scale_log2),
        rescale_factor(segment_max, max, scale_log2)};
}
__device__ inline float merged(float total, float segment, const MergeFactors& factors) {
    return __fmaf_rn(segment, factors.b, __fmul_rn(total, factors.a));
}

// REQUIRES: sum_over_row(segment).
template <int D>
__device__ void merge_segment(
    AttentionState<D>& total, const AttentionState<D>& segment, float scale_log2
) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const MergeFactors factors = merge_factors(total.max[r], segment.max[r], scale_log2);
        total.max[r] = factors.max;
        total.sum[r] = merged(total.sum[r], segment.sum[r], factors);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; ++e)
                total.acc[n][e] = merged(total.acc[n][e], segment.acc[n][e], factors);
        }
    }
}

__device__ inline float attention_output(float acc, float sum) {
    return __fmul_rn(acc, __frcp_rn(sum));
}

}  // namespace pitstop::kernels
