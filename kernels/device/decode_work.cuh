// Computes on the device the work of each block of decode: its share of the keys of all rows
// (attention_index.h), and the runs within its share, one after the other. For blocks of one warp.
#pragma once

#include "kernels/device/attention_rows.cuh"
#include "kernels/device/reduce.cuh"

#include <cuda_runtime.h>

#include <limits>

namespace pitstop::kernels {

// With units of this many keys, each (row, KV head) pair is a single unit.
inline constexpr std::int32_t kUndivided = std::numeric_limits<std::int32_t>::max();

// How the work is cut (attention_index.h); the same in all blocks.
struct Cut {
    std::int32_t unit_keys;
    std::int64_t num_units;          // units in the list
    std::int64_t per_block;          // units
    std::int64_t carried_per_block;  // records
    std::int32_t multiple;           // each pair has a multiple of this many units in the list
};

__device__ inline std::int32_t row_units(
    const AttentionParams& params, std::int32_t r, std::int32_t unit_keys
) {
    if (params.q_starts[r + 1] - params.q_starts[r] != 1) return 0;
    const UnitRange units = units_seen(params.kv_lens[r], params.window, unit_keys);
    return units.end - units.begin;
}

// Returns how many units a row has in the list for each KV head. The last of these units may have
// no keys.
__device__ inline std::int32_t listed_units(
    const AttentionParams& params, std::int32_t r, const Cut& cut
) {
    const std::int32_t num = row_units(params, r, cut.unit_keys);
    return cut.multiple == 1 ? num : (num + cut.multiple - 1) / cut.multiple * cut.multiple;
}

__device__ inline Cut cut_into(
    const AttentionParams& params, std::int32_t unit_keys, bool has_record_per_unit
) {
    std::int64_t num_units = 0;
    for (std::int32_t r = lane_index(); r < params.num_rows; r += kWarp)
        num_units += row_units(params, r, unit_keys);
    num_units = warp_sum(num_units) * params.num_kv_heads;
    const std::int64_t per_block = units_per_block(num_units, params.num_decode_blocks);
    return {unit_keys, num_units, per_block, has_record_per_unit ? per_block : 1, 1};
}

// Returns a cut in which no block has units of two pairs. Returns `cut` if such a cut needs too
// many blocks, or would give a block at least two units more than the fullest block of `cut` has.
// Between two runs a block loses the time of a unit or more: records, a merge, and copies that
// nothing hides. NOT MEASURED on a device: gpu_bench --gaps, attention at 8 and 32 requests.
__device__ inline Cut undivided_blocks(const AttentionParams& params, const Cut& cut) {
    for (std::int64_t share = cut.per_block; share <= cut.per_block + 1; ++share) {
        const auto units = static_cast<std::int32_t>(share);
        std::int32_t num_blocks = 0;
        for (std::int32_t r = lane_index(); r < params.num_rows; r += kWarp)
            num_blocks += (row_units(params, r, cut.unit_keys) + units - 1) / units;
        num_blocks = warp_sum(num_blocks) * params.num_kv_heads;
        if (num_blocks <= params.num_decode_blocks)
            return {cut.unit_keys, num_blocks * share, share, 1, units};
    }
    return cut;
}

// Every block reads the lengths of all rows: 12 bytes per row from L2, 32 rows at a time, twice
// (see find_row). At 256 rows these reads take less than the 2 to 3 us of a separate kernel.
//
// With a list of the work in memory, made beforehand, layers of qwen3-8b took 1 % less, of
// qwen3-0.6b 4 % (H200; bench/results/gpu/early_starts.txt, PLAN=1). No such list is made: a step
// would need one more kernel, and a graph an array whose length depends on the rows.
//
// In fixed order a segment that is not the pair's first can be merged only after those before it,
// so each segment that another block may wait for needs a record. If there are too few records, no
// pair is divided: slower, with the same bits.
__device__ inline Cut cut_work(const AttentionParams& params) {
    if (params.order == AttentionOrder::kFree) {
        const Cut cut = cut_into(params, kKeysPerTile, /*has_record_per_unit=*/false);
        const bool may_fit = params.num_rows * params.num_kv_heads <= params.num_decode_blocks;
        return may_fit && cut.per_block > 1 ? undivided_blocks(params, cut) : cut;
    }
    const Cut cut = cut_into(params, AttentionArgs::kSegmentKeys, /*has_record_per_unit=*/true);
    if (params.num_decode_blocks * (1 + cut.carried_per_block) <= params.num_records) return cut;
    return cut_into(params, kUndivided, /*has_record_per_unit=*/false);
}

// A row and its place in the list of units.
struct RowUnits {
    std::int32_t r;
    std::int64_t begin;  // the row's first unit
    std::int32_t num;    // units per KV head
};

// Returns the row of a unit. REQUIRES: unit < cut.num_units.
__device__ inline RowUnits find_row(
    const AttentionParams& params, const Cut& cut, std::int64_t unit
) {
    std::int64_t before = 0;
    for (std::int32_t first = 0;; first += kWarp) {
        const std::int32_t r = first + lane_index();
        const std::int32_t num = r < params.num_rows ? listed_units(params, r, cut) : 0;
        const std::int64_t own = std::int64_t{num} * params.num_kv_heads;
        std::int64_t end = own;  // the row's last unit + 1, counted from `before`
#pragma unroll
        for (int offset = 1; offset < kWarp; offset *= 2) {
            const std::int64_t other = __shfl_up_sync(kAllLanes, end, offset);
            if (lane_index() >= offset) end += other;
        }
        const unsigned are_past = __ballot_sync(kAllLanes, before + end > unit);
        if (are_past != 0) {  // the row's lane and all lanes after it
            const int lane = kWarp - __popc(are_past);
            return {
                first + lane,
                before + __shfl_sync(kAllLanes, end - own, lane),
                __shfl_sync(kAllLanes, num, lane)};
        }
        before += __shfl_sync(kAllLanes, end, kWarp - 1);
    }
}

// A run: the units of one pair that a block owns.
struct Run {
    BatchRow row;
    std::int32_t kv_head;
    std::int32_t keys_begin;  // the keys that the row's token sees
    std::int32_t keys_end;
    bool has_first;  // whether the run has the pair's first unit
    PairPlace place;
};

// A block's work, in shared memory because the sums need the registers.
struct Work {
    Cut cut;
    RowUnits at;              // the row of this run, or of the previous run
    std::int64_t units_done;  // units of the list that are done
    std::int64_t units_end;
    Run run;
};

// Returns false if there is no work for this block.
__device__ inline bool begin_work(const AttentionParams& params, Work& work) {
    const Cut cut = cut_work(params);
    const std::int64_t begin = blockIdx.x * cut.per_block;
    if (begin >= cut.num_units) return false;
    const RowUnits at = find_row(params, cut, begin);
    if (lane_index() == 0) {
        work.cut = cut;
        work.at = at;
        work.units_done = begin;
        work.units_end = min(begin + cut.per_block, cut.num_units);
    }
    __syncwarp();
    return true;
}

// Advances to the next run. REQUIRES: work.units_done < work.units_end.
__device__ inline void next_run(const AttentionParams& params, Work& work) {
    const Cut cut = work.cut;
    const std::int64_t unit = work.units_done;
    RowUnits at = work.at;
    while (unit == at.begin + std::int64_t{at.num} * params.num_kv_heads)
        at = {at.r + 1, unit, listed_units(params, at.r + 1, cut)};
    const BatchRow row = batch_row(params, at.r);
    const auto of_row = static_cast<std::int32_t>(unit - at.begin);
    const std::int64_t pair_begin = unit - of_row % at.num;
    const std::int64_t run_end = min(pair_begin + at.num, work.units_end);
    // Converts units of the list to units by position, and these to the keys that the token sees.
    const std::int64_t shift =
        units_seen(row.kv_len, params.window, cut.unit_keys).begin - pair_begin;
    const std::int64_t keys_begin = (unit + shift) * cut.unit_keys;
    const std::int64_t keys_end = (run_end + shift) * cut.unit_keys;
    const std::int64_t keys_first = first_key(row.kv_len - 1, params.window);
    __syncwarp();  // all have read the values that are overwritten next
    if (lane_index() == 0) {
        work.at = at;
        work.units_done = run_end;
        work.run = {
            row,
            of_row / at.num,
            static_cast<std::int32_t>(max(keys_begin, keys_first)),
            static_cast<std::int32_t>(min(keys_end, std::int64_t{row.kv_len})),
            unit == pair_begin,
            pair_place(
                pair_begin,
                pair_begin + at.num,
                cut.per_block,
                cut.carried_per_block,
                params.num_decode_blocks
            )};
    }
    __syncwarp();
}

}  // namespace pitstop::kernels
