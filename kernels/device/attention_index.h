// Which block of a grid computes which part of a ragged batch; for the host and the device.
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

// Returns the first key that a token at `position` sees.
[[nodiscard]] constexpr std::int32_t first_key(std::int32_t position, std::int32_t window) {
    return position < window ? 0 : position - window + 1;
}

// Decode's work is a list of units: unit_keys keys each, cut at absolute positions, if the row's
// token sees any of these keys. The order is by row, then KV head, then position. Block b owns
// share b: units b * per_block .. (b + 1) * per_block, which may span rows.
struct UnitRange {
    std::int32_t begin;
    std::int32_t end;
};
// Returns the units that the last of kv_len tokens sees. REQUIRES: kv_len >= 1.
[[nodiscard]] constexpr UnitRange units_seen(
    std::int32_t kv_len, std::int32_t window, std::int32_t unit_keys
) {
    return {first_key(kv_len - 1, window) / unit_keys, (kv_len - 1) / unit_keys + 1};
}
[[nodiscard]] constexpr std::int64_t units_per_block(
    std::int64_t num_units, std::int32_t num_blocks
) {
    const std::int64_t share = (num_units + num_blocks - 1) / num_blocks;
    return share < 1 ? 1 : share;
}

// Where the units of one (row, KV head) pair are computed, and which records of the workspace hold
// their results until all are complete. At most one pair continues after the share of block b; its
// record is b. The records of the pair that began before the share start at num_blocks + b *
// carried_per_block: one record for all of that pair's units in the share, or one for each unit.
struct PairPlace {
    std::int32_t first_block;
    std::int32_t last_block;
    std::int64_t num_records;
    std::int64_t second_record;  // the other records follow it
};
[[nodiscard]] constexpr PairPlace pair_place(
    std::int64_t begin,  // the pair's first unit in the list
    std::int64_t end,
    std::int64_t per_block,
    std::int64_t carried_per_block,  // 1 or per_block
    std::int32_t num_blocks
) {
    const std::int64_t first_block = begin / per_block;
    const std::int64_t last_block = (end - 1) / per_block;
    const std::int64_t carried = carried_per_block == 1      ? last_block - first_block
                                 : first_block == last_block ? 0
                                                             : end - (first_block + 1) * per_block;
    return {
        static_cast<std::int32_t>(first_block),
        static_cast<std::int32_t>(last_block),
        1 + carried,
        num_blocks + (first_block + 1) * carried_per_block};
}
[[nodiscard]] constexpr std::int64_t record_of(const PairPlace& place, std::int64_t index) {
    return index == 0 ? place.first_block : place.second_record + index - 1;
}
[[nodiscard]] constexpr std::int64_t first_carried_record(
    std::int32_t block, std::int64_t carried_per_block, std::int32_t num_blocks
) {
    return num_blocks + block * carried_per_block;
}

}  // namespace pitstop::kernels
