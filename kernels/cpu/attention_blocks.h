// Iterates over the blocks of keys of a group of tiles: where their keys and values are, and which
// part of the next block to fetch meanwhile.
//
// Included once per instruction set, like simd.h. Pages may be anywhere and a key is a few cache
// lines: the hardware does not recognize the pattern in time.
#pragma once

#include "kernels/cpu/attention_tile.h"

#include <cstdint>

namespace pitstop::kernels::PITSTOP_ISA {

// Fetches one key or value into L2.
template <class T>
PITSTOP_INLINE void fetch(const T* head, std::int64_t D) {
    constexpr std::int64_t kPerLine = 64 / sizeof(T);
    for (std::int64_t d = 0; d < D; d += kPerLine)
        __builtin_prefetch(head + d, /*rw=*/0, /*locality=*/2);
}

// Finds keys [begin, end) of a block, and their values.
template <class T>
struct Block {
    std::int64_t first = 0;  // the position of key 0
    std::int64_t begin = 0;
    std::int64_t end = 0;
    const T* keys[kBlock];
    const T* values[kBlock];
};

// Fetches, a few at a time, keys or values of a block that is needed soon.
template <class T>
struct FetchAhead {
    const T* const* heads;  // [kBlock]
    std::int64_t at;        // the next key or value to fetch
    std::int64_t end;
    std::int64_t D;

    PITSTOP_INLINE void fetch_some(std::int64_t num) {
        for (; num > 0 && at < end; --num) fetch(heads[at++], D);
    }
    PITSTOP_INLINE void fetch_rest() { fetch_some(end - at); }
};

// Returns the keys of the block from position `first` that any query of the tile sees.
template <class T>
Seen seen_by_any(const AttentionArgs& args, const Tile<T>& tile, std::int64_t first) {
    return {
        seen_by(tile.position[0], args.window, first).begin,
        seen_by(tile.position[tile.num - 1], args.window, first).end};
}

// Finds the keys of the block from position `first` that any query of the group sees; at least one
// must exist.
template <class T>
void locate_block(
    const AttentionArgs& args, const TileGroup<T>& group, std::int64_t first, Block<T>& block
) {
    const Tile<T>& last = group.tiles[group.num - 1];
    block.first = first;
    block.begin = seen_by_any(args, group.tiles[0], first).begin;
    block.end = seen_by_any(args, last, first).end;
    locate(args.kv, last, first, block.begin, block.end, block.keys, block.values);
}

// Returns the position of the first block that a query of the group sees.
template <class T>
std::int64_t first_position(const AttentionArgs& args, const TileGroup<T>& group) {
    return max64(0, group.tiles[0].position[0] - args.window + 1) / kBlock * kBlock;
}
template <class T>
Block<T> first_block(const AttentionArgs& args, const TileGroup<T>& group) {
    Block<T> block;
    locate_block(args, group, first_position(args, group), block);
    return block;
}

// Iterates over the blocks of segments [begin, end) that a group sees; `after` follows the last.
template <class T>
class BlockWalk {
  public:
    BlockWalk(
        const AttentionArgs& args,
        const TileGroup<T>& group,
        std::int64_t segments_begin,
        std::int64_t segments_end,
        const Block<T>& after
    )
        : args_(args), group_(group), after_(after) {
        const Tile<T>& last = group.tiles[group.num - 1];
        first_ = max64(segments_begin * kSegment, first_position(args, group));
        end_ = min64(segments_end * kSegment, last.position[last.num - 1] + 1);
        if (has_block()) locate_block(args_, group_, first_, blocks_[at_]);
        locate_next();
    }

    [[nodiscard]] bool has_block() const { return first_ < end_; }
    [[nodiscard]] std::int64_t first() const { return first_; }
    [[nodiscard]] Block<T>& block() { return blocks_[at_]; }
    [[nodiscard]] const Block<T>& next() const {
        return first_ + kBlock < end_ ? blocks_[1 - at_] : after_;
    }
    void move() {
        first_ += kBlock;
        at_ = 1 - at_;
        locate_next();
    }

  private:
    void locate_next() {
        if (first_ + kBlock < end_) locate_block(args_, group_, first_ + kBlock, blocks_[1 - at_]);
    }

    const AttentionArgs& args_;
    const TileGroup<T>& group_;
    const Block<T>& after_;
    Block<T> blocks_[2];
    int at_ = 0;              // index in blocks_ of the current block
    std::int64_t first_ = 0;  // the position of the current block
    std::int64_t end_ = 0;
};

}  // namespace pitstop::kernels::PITSTOP_ISA
