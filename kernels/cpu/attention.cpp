// Work is cut into tiles: up to 16 query vectors (tokens x heads of one group) of one row against
// one KV head, so that a loaded key or value serves them all. Per tile and block of 64 keys:
// scores, softmax update, values. A query's arithmetic does not depend on its tile: the probability
// of an invisible key is exactly zero in the key's lane of the sum, and its value is skipped. Long
// prompts process tiles in groups, which share a block's packed keys.
#include "kernels/cpu/attention_blocks.h"
#include "kernels/cpu/attention_scores.h"
#include "kernels/cpu/attention_softmax.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/attention_values.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vmath.h"

namespace pitstop::kernels::PITSTOP_ISA {
namespace {

// Adds one block of keys to the state of every query that sees any of it, and fetches the
// block `next`.
template <class T>
void add_block(
    const AttentionArgs& args,
    const TileGroup<T>& group,
    Block<T>& block,
    const Block<T>& next,
    State* states,  // [group.num]
    std::int64_t D_padded
) {
    const std::int64_t D = args.kv.head_dim;
    const bool is_packed = group.tiles[0].num >= kPackedQueriesMin;
    PackedKeys<T> packed;
    if (is_packed) pack_keys(block, D, packed);
    FetchAhead<T> next_keys{next.keys, next.begin, next.end, D};
    FetchAhead<T> next_values{next.values, next.begin, next.end, D};
    for (int t = 0; t < group.num; ++t) {
        const Tile<T>& tile = group.tiles[t];
        const Seen any = seen_by_any(args, tile, block.first);
        if (any.begin >= any.end) continue;
        alignas(64) float scores[kTileQueries][kBlock];
        if (is_packed) {
            score_packed_block(tile, packed, any.begin, any.end, D, args.scale, scores);
        } else {
            score_block(tile, block.keys, any, D, args.scale, scores, next_keys);
        }
        Seen seen[kTileQueries];
        for (int v = 0; v < tile.num; ++v)
            seen[v] = seen_by(tile.position[v], args.window, block.first);
        Probabilities<T> p;
        alignas(64) float alpha[kTileQueries];
        soften(scores, seen, tile.num, states[t], alpha, p);
        next_keys.fetch_rest();
        add_values_of_block(
            p, alpha, block.values, seen, tile.num, D, states[t].out, D_padded, next_values
        );
    }
    next_values.fetch_rest();
}

// Adds a segment's keys to cleared states.
template <class T>
void add_segment(
    const AttentionArgs& args,
    const TileGroup<T>& group,
    std::int64_t segment,
    BlockWalk<T>& walk,
    State* states,  // [group.num]
    std::int64_t D_padded
) {
    for (; walk.has_block() && walk.first() < (segment + 1) * kSegment; walk.move())
        add_block(args, group, walk.block(), walk.next(), states, D_padded);
}

// Computes total += part, for one query.
PITSTOP_INLINE void merge_query(
    float& total_max,
    float& total_sum,
    float* total_out,
    float part_max,
    float part_sum,
    const float* part_out,
    std::int64_t D_padded
) {
    if (part_sum == 0.f) return;  // the query sees no key of this segment
    const float new_max = part_max > total_max ? part_max : total_max;
    alignas(64) float factors[kLanes] = {total_max - new_max, part_max - new_max};
    store(factors, exp(load(factors)));
    total_max = new_max;
    total_sum = total_sum * factors[0] + part_sum * factors[1];
    for (std::int64_t i = 0; i < D_padded; i += kLanes) {
        store(
            total_out + i,
            fma(load(part_out + i), set1(factors[1]), load(total_out + i) * set1(factors[0]))
        );
    }
}

template <class Out>
PITSTOP_INLINE void write_out(Out* out, const float* total_out, float total_sum, std::int64_t D) {
    const F32x16 inverse = set1(1.f / total_sum);
    for (std::int64_t i = 0; i < D; i += kLanes)
        store_up_to(out + i, load(total_out + i) * inverse, D - i);
}

template <class T>
void write_query(
    const AttentionArgs& args,
    std::int64_t index,
    const float* total_out,
    float total_sum,
    std::int64_t D_padded
) {
    alignas(64) float ordered[kHeadDimMax];
    total_out = in_order<T>(total_out, ordered, D_padded);
    const std::int64_t D = args.kv.head_dim;
    const std::int64_t element =
        index / args.num_q_heads * args.out.stride + index % args.num_q_heads * D;
    if (args.out.dtype == DType::kF32) {
        write_out(static_cast<float*>(args.out.data) + element, total_out, total_sum, D);
    } else {
        write_out(static_cast<bf16*>(args.out.data) + element, total_out, total_sum, D);
    }
}

// Computes the outputs of a group, and fetches the block that the thread needs `after` it.
template <class T>
void attend(
    const AttentionArgs& args,
    const TileGroup<T>& group,
    const Block<T>& after,
    std::int64_t D_padded
) {
    State parts[kGroupTiles];
    State totals[kGroupTiles];
    for (int t = 0; t < group.num; ++t) clear(totals[t], group.tiles[t].num, D_padded);
    const std::int64_t segments_begin = segments_of(args, group.tiles[0]).begin;
    const std::int64_t segments_end = segments_of(args, group.tiles[group.num - 1]).end;
    BlockWalk<T> walk(args, group, segments_begin, segments_end, after);
    for (std::int64_t segment = segments_begin; segment < segments_end; ++segment) {
        for (int t = 0; t < group.num; ++t) clear(parts[t], group.tiles[t].num, D_padded);
        add_segment(args, group, segment, walk, parts, D_padded);
        for (int t = 0; t < group.num; ++t) {
            State& total = totals[t];
            const State& part = parts[t];
            for (int v = 0; v < group.tiles[t].num; ++v) {
                merge_query(
                    total.max[v],
                    total.sum[v],
                    total.out + v * D_padded,
                    part.max[v],
                    part.sum[v],
                    part.out + v * D_padded,
                    D_padded
                );
            }
        }
    }
    for (int t = 0; t < group.num; ++t) {
        const Tile<T>& tile = group.tiles[t];
        const State& total = totals[t];
        for (int v = 0; v < tile.num; ++v)
            write_query<T>(args, tile.index[v], total.out + v * D_padded, total.sum[v], D_padded);
    }
}

// With few tiles and many keys, the threads process (tile, segment) pairs, store parts in the
// workspace, and the parts are merged as attend() does. [T * Q, num_segments] entries: max, sum,
// padding, then out.
constexpr std::int64_t kPartHeader = kLanes;

template <class T>
void attend_split(
    const AttentionArgs& args,
    std::int64_t total_tiles,
    std::int64_t num_segments,
    std::int64_t D_padded
) {
    float* const workspace = static_cast<float*>(args.workspace.data);
    const std::int64_t part_floats = kPartHeader + D_padded;
    // nothing is fetched for the next range: ranges are long and begin at unrelated places
    const Block<T> none{};
    auto parts = [&](std::int64_t begin, std::int64_t end) {
        TilePlace place{.group_tiles = 1};
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t segment = i % num_segments;
            place.skip_to(args, i / num_segments);
            const TileGroup<T> group = make_group<T>(args, place);
            const Tile<T>& tile = group.tiles[0];
            const Segments segments = segments_of(args, tile);
            if (segment < segments.begin || segment >= segments.end) continue;
            State state;
            clear(state, tile.num, D_padded);
            BlockWalk<T> walk(args, group, segment, segment + 1, none);
            add_segment(args, group, segment, walk, &state, D_padded);
            for (int v = 0; v < tile.num; ++v) {
                float* const part =
                    workspace + (tile.index[v] * num_segments + segment) * part_floats;
                part[0] = state.max[v];
                part[1] = state.sum[v];
                for (std::int64_t d = 0; d < D_padded; d += kLanes) {
                    store(part + kPartHeader + d, load(state.out + v * D_padded + d));
                }
            }
        }
    };
    for_ranges(args.stream, total_tiles * num_segments, 1, parts);

    auto merges = [&](std::int64_t begin, std::int64_t end) {
        TilePlace place{.group_tiles = 1};
        State total;
        for (std::int64_t i = begin; i < end; ++i) {
            place.skip_to(args, i);
            const Tile<T> tile = make_group<T>(args, place).tiles[0];
            const Segments segments = segments_of(args, tile);
            clear(total, tile.num, D_padded);
            for (int v = 0; v < tile.num; ++v) {
                for (std::int64_t segment = segments.begin; segment < segments.end; ++segment) {
                    const float* const part =
                        workspace + (tile.index[v] * num_segments + segment) * part_floats;
                    merge_query(
                        total.max[v],
                        total.sum[v],
                        total.out + v * D_padded,
                        part[0],
                        part[1],
                        part + kPartHeader,
                        D_padded
                    );
                }
                write_query<T>(
                    args, tile.index[v], total.out + v * D_padded, total.sum[v], D_padded
                );
            }
        }
    };
    for_ranges(args.stream, total_tiles, total_tiles, merges);
}

template <class T>
void attention_of(const AttentionArgs& args) {
    const std::int64_t D = args.kv.head_dim;
    const std::int64_t padded_dim = padded_head_dim<T>(D);
    const std::int64_t total_tiles = num_groups(args, 1);
    if (total_tiles == 0) return;

    const std::int64_t num_segments = (args.kv_len_max + kSegment - 1) / kSegment;
    const std::int64_t split_bytes =
        args.q.rows * args.num_q_heads * num_segments * (kPartHeader + padded_dim) * 4;
    const std::int64_t num_threads = num_threads_of(args.stream);
    if (num_threads > 1 && total_tiles < 2 * num_threads && num_segments > 1 &&
        split_bytes <= args.workspace.bytes) {
        attend_split<T>(args, total_tiles, num_segments, padded_dim);
        return;
    }
    // Tiles are grouped if there is enough work for all threads even then. A range is worth waking
    // a thread for at about 2^18 products; every tile counts as a full one.
    const int group_tiles = total_tiles >= kGroupTiles * (8 * num_threads) ? kGroupTiles : 1;
    const std::int64_t products =
        min64(kTileQueries, args.q.rows * group_of(args)) * args.kv_len_max * D * 2;
    const std::int64_t grain = max64(1, (std::int64_t{1} << 18) / max64(1, products));
    const std::int64_t total_groups = num_groups(args, group_tiles);
    auto groups = [&](std::int64_t begin, std::int64_t end) {
        TilePlace place{.group_tiles = group_tiles};
        place.skip_to(args, begin);
        TileGroup<T> group = make_group<T>(args, place);
        for (std::int64_t i = begin; i < end; ++i) {
            // After this range's last group, `next` is the first group of the range that the thread
            // likely gets then.
            const std::int64_t next = i + 1 < end ? i + 1 : i + 1 + (num_threads - 1) * grain;
            TileGroup<T> next_group;
            Block<T> after;
            if (next < total_groups) {
                place.skip_to(args, next);
                next_group = make_group<T>(args, place);
                after = first_block(args, next_group);
            }
            attend(args, group, after, padded_dim);
            if (i + 1 < end) group = next_group;  // otherwise next_group belongs to another range
        }
    };
    for_ranges(args.stream, total_groups, grain, groups);
}

}  // namespace

void attention(const AttentionArgs& args) {
    check(args);
    if (args.q.dtype == DType::kF32) {
        attention_of<float>(args);
    } else {
        attention_of<bf16>(args);
    }
}

}  // namespace pitstop::kernels::PITSTOP_ISA
