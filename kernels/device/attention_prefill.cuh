// A prefill block's part of a ragged batch; shared by the two prefill kernels.
#pragma once

#include "kernels/device/attention_rows.cuh"

namespace pitstop::kernels {

inline constexpr std::int32_t kNoKey = -1;

// A tile of tokens of one row, for the query heads of one KV head: tile row i is token i / group,
// head i % group.
struct PrefillTile {
    BatchRow row;
    std::int32_t kv_head;
    std::int32_t first_token;  // the first of the row's new tokens
    std::int32_t num_tokens;   // 0 if there is nothing to do
    std::int32_t keys_begin;   // the keys that any of the tile's tokens sees
    std::int32_t keys_end;

    // Returns the last key that tile row i sees, or kNoKey if the row does not exist.
    __device__ std::int32_t last_key(const AttentionParams& params, int i) const {
        const std::int32_t token = i / params.group;
        return token < num_tokens ? row.position(first_token + token) : kNoKey;
    }
    // Returns the offset in elements of tile row i's queries or output. REQUIRES: the row exists.
    __device__ std::int64_t query_index(
        const AttentionParams& params, int i, std::int64_t stride, int D
    ) const {
        return head_index(
            std::int64_t{row.q_begin} + first_token + i / params.group,
            stride,
            kv_head * params.group + i % params.group,
            D
        );
    }
};

// Finds the block's row of the batch: the last r whose first_block is at or below `block`. Looks at
// 32 rows per step, at distances ascending by 32^k; every warp does so by itself.
__device__ inline std::int32_t find_row(
    const AttentionParams& params, std::int32_t block, std::int32_t tile_len
) {
    std::int32_t step = 1;
    while (step * kWarp < params.num_rows) step *= kWarp;
    std::int32_t begin = 0;  // the row is in [begin, begin + 32 * step)
    for (; step >= 1; step /= kWarp) {
        const std::int32_t r = begin + lane_index() * step;
        const bool starts_before =
            r < params.num_rows && first_block(params.q_starts[r], r, tile_len) <= block;
        // The matching lanes are the lower ones, including lane 0.
        begin += (__popc(__ballot_sync(kAllLanes, starts_before)) - 1) * step;
    }
    return begin;
}

// Returns this block's tile of `num_rows` rows. The grid is [KV heads, num_prefill_blocks]. The
// batch's last tiles have the first blocks, because a row's later tokens see more keys: the longest
// tiles start first.
__device__ inline PrefillTile prefill_tile(const AttentionParams& params, int num_rows) {
    const auto block = static_cast<std::int32_t>(gridDim.y - 1 - blockIdx.y);
    const std::int32_t tile_len = num_rows / params.group;  // tokens
    const std::int32_t r = find_row(params, block, tile_len);
    PrefillTile tile{
        .row = batch_row(params, r),
        .kv_head = static_cast<std::int32_t>(blockIdx.x),
        .first_token = 0,
        .num_tokens = 0,
        .keys_begin = 0,
        .keys_end = 0};
    tile.first_token = (block - first_block(tile.row.q_begin, r, tile_len)) * tile_len;
    if (tile.row.q_len < params.q_len_min) return tile;
    // <= 0: the block is superfluous
    tile.num_tokens = min(tile_len, tile.row.q_len - tile.first_token);
    tile.keys_begin = first_key(tile.row.position(tile.first_token), params.window);
    tile.keys_end = tile.row.position(tile.first_token + tile.num_tokens - 1) + 1;
    return tile;
}

}  // namespace pitstop::kernels
