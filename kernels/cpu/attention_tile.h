// The division of attention's work: tiles of queries against one KV head, blocks and
// segments of keys.
//
// Included once per instruction set, like simd.h.
#pragma once

#include "kernels/attention.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/simd.h"

#include <cstdint>

namespace pitstop::kernels::PITSTOP_ISA {

constexpr int kTileQueries = 16;  // the lanes of one vector of maxima
constexpr std::int64_t kHeadDimMax = AttentionArgs::kHeadDimMax;
constexpr std::int64_t kBlock = AttentionArgs::kBlockKeys;
constexpr std::int64_t kSegment = AttentionArgs::kSegmentKeys;

inline std::int64_t min64(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
inline std::int64_t max64(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

// Some queries of one row against one KV head.
template <class T>
struct Tile {
    int num = 0;                          // queries, at most kTileQueries
    const T* queries[kTileQueries];       // [D] each
    std::int64_t index[kTileQueries];     // token * Q + head
    std::int64_t position[kTileQueries];  // ascending
    const PageId* pages = nullptr;        // of the row
    const T* kv = nullptr;                // of the KV head in page 0
};

// The keys of the block from position `first` that a query at `position` sees, counted
// from `first`.
struct Seen {
    std::int64_t begin;
    std::int64_t end;
};
PITSTOP_INLINE Seen seen_by(std::int64_t position, std::int64_t window, std::int64_t first) {
    return {max64(0, position - window + 1 - first), min64(position + 1 - first, kBlock)};
}

// Pointers to the keys and values [begin, end) of the block from position `first`.
template <class T>
PITSTOP_INLINE void locate(
    const KvCache& kv,
    const Tile<T>& tile,
    std::int64_t first,
    std::int64_t begin,
    std::int64_t end,
    const T** keys,
    const T** values
) {
    const std::int64_t head_elements = std::int64_t{kv.page_size} * kv.head_dim;
    const std::int64_t value_elements = kv.num_kv_heads * head_elements;
    std::int64_t page = (first + begin) / kv.page_size;
    std::int64_t offset = (first + begin) % kv.page_size;
    for (std::int64_t j = begin; j < end; ++j) {
        keys[j] = tile.kv + static_cast<std::int64_t>(tile.pages[page]) * 2 * value_elements +
                  offset * kv.head_dim;
        values[j] = keys[j] + value_elements;
        if (++offset == kv.page_size) {
            offset = 0;
            ++page;
        }
    }
}

inline std::int64_t group_of(const AttentionArgs& args) {
    return args.num_q_heads / args.kv.num_kv_heads;
}

// Consecutive tiles of a row, against the same KV head: a block of its keys is packed once for all
// of them.
constexpr int kGroupTiles = 8;
template <class T>
struct TileGroup {
    int num = 0;
    Tile<T> tiles[kGroupTiles];
};

// Returns the number of groups of up to `group_tiles` tiles of a row and one KV head.
inline std::int64_t num_groups_of_row(const AttentionArgs& args, std::int64_t r, int group_tiles) {
    const std::int64_t queries = (args.q_starts[r + 1] - args.q_starts[r]) * group_of(args);
    const std::int64_t most = std::int64_t{kTileQueries} * group_tiles;
    return (queries + most - 1) / most;
}
// Returns the number of groups of the batch, over all KV heads.
inline std::int64_t num_groups(const AttentionArgs& args, int group_tiles) {
    std::int64_t num = 0;
    for (std::int64_t r = 0; r < args.num_rows; ++r)
        num += num_groups_of_row(args, r, group_tiles) * args.kv.num_kv_heads;
    return num;
}

// Iterates over the groups of the batch: rows, then groups of the row, then KV heads.
struct TilePlace {
    int group_tiles = 1;  // tiles of a group, at most kGroupTiles
    std::int64_t row = 0;
    std::int64_t in_row = 0;

    void skip_to(const AttentionArgs& args, std::int64_t index) {
        in_row = index;
        row = 0;
        for (;; ++row) {
            const std::int64_t num =
                num_groups_of_row(args, row, group_tiles) * args.kv.num_kv_heads;
            if (in_row < num) return;
            in_row -= num;
        }
    }
};

// Makes the tile of a row and KV head from the row's query vector `first` on: token by token, and
// within a token the heads of the group.
template <class T>
Tile<T> make_tile(
    const AttentionArgs& args, std::int64_t r, std::int64_t kv_head, std::int64_t first
) {
    const KvCache& kv = args.kv;
    const std::int64_t group = group_of(args);
    const std::int64_t num_tokens = args.q_starts[r + 1] - args.q_starts[r];
    Tile<T> tile;
    tile.num = static_cast<int>(min64(kTileQueries, num_tokens * group - first));
    tile.pages = args.pages + args.page_starts[r];
    tile.kv = static_cast<const T*>(kv.data) + kv_head * kv.page_size * kv.head_dim;
    for (int v = 0; v < tile.num; ++v) {
        const std::int64_t t = (first + v) / group;  // token of the row
        const std::int64_t head = kv_head * group + (first + v) % group;
        const std::int64_t token = args.q_starts[r] + t;
        tile.queries[v] =
            static_cast<const T*>(args.q.data) + token * args.q.stride + head * kv.head_dim;
        tile.index[v] = token * args.num_q_heads + head;
        tile.position[v] = args.kv_lens[r] - num_tokens + t;
    }
    return tile;
}

template <class T>
TileGroup<T> make_group(const AttentionArgs& args, const TilePlace& place) {
    const std::int64_t kv_head = place.in_row % args.kv.num_kv_heads;
    const std::int64_t queries =
        (args.q_starts[place.row + 1] - args.q_starts[place.row]) * group_of(args);
    std::int64_t first = place.in_row / args.kv.num_kv_heads * place.group_tiles * kTileQueries;
    TileGroup<T> group;
    for (; group.num < place.group_tiles && first < queries; first += kTileQueries)
        group.tiles[group.num++] = make_tile<T>(args, place.row, kv_head, first);
    return group;
}

// The segments [begin, end) that any query of the tile sees.
struct Segments {
    std::int64_t begin;
    std::int64_t end;
};
template <class T>
Segments segments_of(const AttentionArgs& args, const Tile<T>& tile) {
    return {
        max64(0, tile.position[0] - args.window + 1) / kSegment,
        tile.position[tile.num - 1] / kSegment + 1};
}

}  // namespace pitstop::kernels::PITSTOP_ISA
