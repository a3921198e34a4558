// Computes which block of a grid does which part of a ragged batch, on the host and on the device.
#pragma once

#include <cstdint>

namespace pitstop::kernels {

// Prefill cuts row r's new tokens into tiles of tile_len. The grid is launched without knowing the
// rows' lengths: row r owns the blocks from first_block(q_starts[r], r) to that of r + 1, which are
// enough for its tiles, and at most one too many.
//   floor((s + n) / t) + 1 - floor(s / t)  >=  floor(n / t) + 1  >=  ceil(n / t)
[[nodiscard]] constexpr std::int32_t first_block(
    std::int32_t q_start, std::int32_t row, std::int32_t tile_len
) {
    return q_start / tile_len + row;
}
// Returns the blocks of the whole batch: first_block(T, R).
[[nodiscard]] constexpr std::int64_t num_prefill_blocks(
    std::int64_t num_tokens, std::int64_t num_rows, std::int64_t tile_len
) {
    return num_tokens / tile_len + num_rows;
}

// Keys per segment of decode, a multiple of block_keys: as few segments as give `warps_wanted`
// warps over all (row, KV head) pairs, at most one per block of keys.
[[nodiscard]] constexpr std::int32_t decode_segment_keys(
    std::int64_t num_pairs,
    std::int32_t kv_len_max,
    std::int32_t block_keys,
    std::int64_t warps_wanted
) {
    const std::int64_t num_blocks = (std::int64_t{kv_len_max} + block_keys - 1) / block_keys;
    std::int64_t num_segments = (warps_wanted + num_pairs - 1) / num_pairs;
    num_segments = num_segments < num_blocks ? num_segments : num_blocks;
    if (num_segments < 1) num_segments = 1;
    const std::int64_t blocks = (num_blocks + num_segments - 1) / num_segments;
    return static_cast<std::int32_t>((blocks < 1 ? 1 : blocks) * block_keys);
}

// Returns the first key that a token at `position` sees.
[[nodiscard]] constexpr std::int32_t first_key(std::int32_t position, std::int32_t window) {
    return position < window ? 0 : position - window + 1;
}

}  // namespace pitstop::kernels
