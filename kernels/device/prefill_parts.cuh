// The parts of a prefill tile's keys that blocks of wgmma's kernel share: which part a block has,
// how a block stores its state, and how the last block merges all states. Only for sm_90a: guard
// callers with __CUDA_ARCH_FEAT_SM90_ALL.
#pragma once

#include "kernels/device/attention_prefill.cuh"
#include "kernels/device/online_softmax.cuh"
#include "kernels/device/wgmma.cuh"

namespace pitstop::kernels {

inline constexpr std::int32_t kPrefillTileKeys = 128;  // keys of one step
inline constexpr int kPartBarrier = 4;                 // of both multiplying warpgroups

__device__ __forceinline__ std::int32_t num_key_tiles(const PrefillTile& work) {
    return (work.keys_end + kPrefillTileKeys - 1) / kPrefillTileKeys -
           work.keys_begin / kPrefillTileKeys;
}

// The keys that a multiplying thread's two rows see.
struct RowKeys {
    std::int32_t first[2];
    std::int32_t last[2];  // kNoKey if the row does not exist
    // all 16 rows of the warp see the keys from all_first to all_last: tiles within need no mask
    std::int32_t all_first;
    std::int32_t all_last;
};

__device__ __forceinline__ RowKeys row_keys(
    const AttentionParams& params,
    const std::int32_t* last_keys  // for this warp's 16 rows
) {
    RowKeys seen;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        seen.last[r] = last_keys[lane_index() / 4 + r * 8];
        seen.first[r] = first_key(seen.last[r], params.window);
    }
    seen.all_first = __reduce_max_sync(kAllLanes, max(seen.first[0], seen.first[1]));
    seen.all_last = __reduce_min_sync(kAllLanes, min(seen.last[0], seen.last[1]));
    return seen;
}

// Part `part` of the keys, and the number of parts. The parts are equal shares of whole key tiles.
// A part has at least two tiles: merging a part of one tile would cost more than it saves.
struct Part {
    std::int32_t num;
    std::int32_t keys_begin;
    std::int32_t keys_end;
};
__device__ __forceinline__ Part
part_of(const PrefillTile& work, std::int32_t part, std::int32_t max_parts) {
    constexpr std::int32_t kTilesMin = 2;
    const std::int32_t num_tiles = num_key_tiles(work);
    const std::int32_t per_part = max(kTilesMin, (num_tiles + max_parts - 1) / max_parts);
    const std::int32_t begin =
        (work.keys_begin / kPrefillTileKeys + part * per_part) * kPrefillTileKeys;
    return {
        (num_tiles + per_part - 1) / per_part,
        max(work.keys_begin, begin),
        min(work.keys_end, begin + per_part * kPrefillTileKeys)};
}

template <int D>
__device__ __forceinline__ float* part_record(const AttentionParams& params, std::int32_t part) {
    const std::int64_t tile = blockIdx.x + std::int64_t{gridDim.x} * blockIdx.y;
    return params.records + (tile * gridDim.z + part) * prefill_record_floats(D);
}
template <int D>
constexpr int row_floats() {
    return static_cast<int>(prefill_record_floats(D)) / kPrefillTileRows;
}

// Stores the thread's two rows of a part.
template <int D>
__device__ __forceinline__ void store_part(
    const AttentionParams& params, const float (&acc)[D / 2], const RowState& state, int warp_row
) {
    const int lane = lane_index();
    float* const record = part_record<D>(params, static_cast<std::int32_t>(blockIdx.z));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float sum = warp_sum<4>(state.sum[r]);
        float* const row = record + (warp_row + lane / 4 + r * 8) * row_floats<D>();
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
            *reinterpret_cast<float2*>(row + n * 8 + lane % 4 * 2) =
                make_float2(acc[n * 4 + 2 * r], acc[n * 4 + 2 * r + 1]);
        }
        if (lane % 4 == 0) *reinterpret_cast<float2*>(row + D) = make_float2(state.max[r], sum);
    }
}

// Returns true in the last block to arrive among a tile's blocks, when all parts are stored. The
// count is zero again afterwards. Both multiplying warpgroups call it.
__device__ __forceinline__ bool is_last_part(
    const AttentionParams& params, std::int32_t num_parts, bool& is_last
) {
    __threadfence();  // orders the thread's stores before the block's arrival
    named_barrier<2 * kWarpgroup>(kPartBarrier);
    if (threadIdx.x == kWarpgroup) {
        const auto others = static_cast<unsigned>(num_parts - 1);
        std::uint32_t* const count = params.arrivals + blockIdx.x + gridDim.x * blockIdx.y;
        is_last = atomicInc(count, others) == others;
        __threadfence();  // orders other blocks' stores before the reads below
    }
    named_barrier<2 * kWarpgroup>(kPartBarrier);
    return is_last;
}

// Merges the parts in ascending order. A thread reads the places at which it stored its own part.
template <int D>
__device__ __forceinline__ void merge_parts(
    const AttentionParams& params,
    const PrefillTile& work,
    std::int32_t num_parts,
    const RowKeys& seen,
    int warp_row
) {
    const int lane = lane_index();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        if (seen.last[r] == kNoKey) continue;
        const int tile_row = warp_row + lane / 4 + r * 8;
        float max_score = minus_infinity();
        float sum = 0.f;
        float2 sums[D / 8] = {};
        for (std::int32_t part = 0; part < num_parts; ++part) {
            const float* const row = part_record<D>(params, part) + tile_row * row_floats<D>();
            const float2 weights = read_record<float2>(row + D);
            float2 packs[D / 8];
#pragma unroll
            for (int n = 0; n < D / 8; ++n)
                packs[n] = read_record<float2>(row + n * 8 + lane % 4 * 2);
            const MergeFactors factors = merge_factors(max_score, weights.x, params.scale_log2);
            max_score = factors.max;
            sum = merged(sum, weights.y, factors);
#pragma unroll
            for (int n = 0; n < D / 8; ++n) {
                sums[n].x = merged(sums[n].x, packs[n].x, factors);
                sums[n].y = merged(sums[n].y, packs[n].y, factors);
            }
        }
        const std::int64_t index = work.query_index(params, tile_row, params.out_stride, D);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
            store_pair(
                params,
                index + n * 8 + lane % 4 * 2,
                attention_output(sums[n].x, sum),
                attention_output(sums[n].y, sum)
            );
        }
    }
}

}  // namespace pitstop::kernels
