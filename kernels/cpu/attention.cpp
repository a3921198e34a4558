// Work is cut into tiles: up to 16 query vectors (tokens x heads of one group) of one row against
// one KV head, so that a loaded key or value serves them all. Per tile and block of 64 keys:
// scores, softmax update, values. A query's arithmetic is the same in any tile: keys it does not
// see get a probability of exactly zero in their own lane of the sum, and are left out of the
// product with the values.
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/attention_values.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vmath.h"

namespace pitstop::kernels::PITSTOP_ISA {
namespace {

constexpr float kNegInf = -__builtin_inff();

// Products of queries and keys, both bf16 or both fp32.
template <class T>
struct Dot;
template <>
struct Dot<bf16> {
    using Vector = Bf16x32;
    static constexpr std::int64_t kStep = 32;
    PITSTOP_INLINE static Vector load(const bf16* p) { return load_pairs(p); }
    PITSTOP_INLINE static Vector load(const bf16* p, std::int64_t n) { return load_pairs(p, n); }
    PITSTOP_INLINE static F32x16 accumulate(F32x16 acc, Vector a, Vector b) {
        return dot_pairs(acc, a, b);
    }
};
template <>
struct Dot<float> {
    using Vector = F32x16;
    static constexpr std::int64_t kStep = 16;
    PITSTOP_INLINE static Vector load(const float* p) { return PITSTOP_ISA::load(p); }
    PITSTOP_INLINE static Vector load(const float* p, std::int64_t n) {
        return PITSTOP_ISA::load(p, n);
    }
    PITSTOP_INLINE static F32x16 accumulate(F32x16 acc, Vector a, Vector b) {
        return fma(a, b, acc);
    }
};

// Holds an online softmax over some of the keys, for each query of a tile.
struct State {
    alignas(64) float max[kTileQueries];
    alignas(64) float sum[kTileQueries];    // 0: no key seen
    float out[kTileQueries * kHeadDimMax];  // [num, D_padded], not yet divided by sum
};

void clear(State& state, int num, std::int64_t D_padded) {
    store(state.max, set1(kNegInf));
    store(state.sum, zero());
    for (std::int64_t i = 0; i < num * D_padded; i += kLanes) store(state.out + i, zero());
}

// scores[i][j] = scale * queries[i] . keys[j] for kQueries queries and 4 keys.
template <class T, int kQueries>
PITSTOP_INLINE void score4(
    const T* const* queries,
    const T* const* keys,
    std::int64_t D,
    float scale,
    float* scores  // [kQueries, kBlock], from the column of keys[0]
) {
    using D_ = Dot<T>;
    F32x16 acc[kQueries][4];
    for (int i = 0; i < kQueries; ++i) {
        for (int j = 0; j < 4; ++j) acc[i][j] = zero();
    }
    std::int64_t d = 0;
    for (; d + D_::kStep <= D; d += D_::kStep) {
        typename D_::Vector key[4];
        for (int j = 0; j < 4; ++j) key[j] = D_::load(keys[j] + d);
        for (int i = 0; i < kQueries; ++i) {
            const typename D_::Vector query = D_::load(queries[i] + d);
            for (int j = 0; j < 4; ++j) acc[i][j] = D_::accumulate(acc[i][j], query, key[j]);
        }
    }
    if (d < D) {
        for (int i = 0; i < kQueries; ++i) {
            const typename D_::Vector query = D_::load(queries[i] + d, D - d);
            for (int j = 0; j < 4; ++j)
                acc[i][j] = D_::accumulate(acc[i][j], query, D_::load(keys[j] + d, D - d));
        }
    }
    F32x16 products[kLanes];  // copies where the queries are fewer: the compiler adds each but once
    for (int i = 0; i < kLanes; ++i) products[i] = acc[i / 4 % kQueries][i % 4];
    alignas(64) float scaled[kLanes];
    store(scaled, PITSTOP_ISA::sums(products) * set1(scale));
    for (std::int64_t i = 0; i < kQueries; ++i)
        __builtin_memcpy(scores + i * kBlock, scaled + i * 4, 4 * sizeof(float));
}

// Fetches into L2. Pages lie anywhere and a key is a few lines: the hardware does not see the
// pattern in time.
template <class T>
PITSTOP_INLINE void fetch(const T* head, std::int64_t D) {
    constexpr std::int64_t kPerLine = 64 / sizeof(T);
    for (std::int64_t d = 0; d < D; d += kPerLine)
        __builtin_prefetch(head + d, /*rw=*/0, /*locality=*/2);
}

// Fetches the keys of the block from position `first`, which is the next one to be scored.
template <class T>
PITSTOP_INLINE void fetch_keys(const AttentionArgs& args, const Tile<T>& tile, std::int64_t first) {
    const Seen seen = seen_by(tile.position[tile.num - 1], args.window, first);
    const T* keys[kBlock];
    const T* values[kBlock];
    locate(args.kv, tile, first, seen.begin, seen.end, keys, values);
    for (std::int64_t j = seen.begin; j < seen.end; ++j) fetch(keys[j], args.kv.head_dim);
}

// All queries against keys [begin, end) of a block, by fours; what a four has beyond is a copy. The
// values, which are wanted next, are fetched meanwhile.
template <class T>
PITSTOP_INLINE void score_block(
    const Tile<T>& tile,
    const T** keys,          // [kBlock], [begin, end) of it given
    const T* const* values,  // likewise
    std::int64_t begin,
    std::int64_t end,
    std::int64_t D,
    float scale,
    float (*p)[kBlock]  // [tile.num, kBlock]
) {
    const std::int64_t four_begin = begin / 4 * 4;
    const std::int64_t four_end = (end + 3) / 4 * 4;
    for (std::int64_t j = four_begin; j < begin; ++j) keys[j] = keys[begin];
    for (std::int64_t j = end; j < four_end; ++j) keys[j] = keys[end - 1];
    for (std::int64_t j = four_begin; j < four_end; j += 4) {
        for (std::int64_t i = max64(j, begin); i < min64(j + 4, end); ++i) fetch(values[i], D);
        int v = 0;
        for (; v + 4 <= tile.num; v += 4)
            score4<T, 4>(tile.queries + v, keys + j, D, scale, p[v] + j);
        for (; v + 2 <= tile.num; v += 2)
            score4<T, 2>(tile.queries + v, keys + j, D, scale, p[v] + j);
        for (; v < tile.num; ++v) score4<T, 1>(tile.queries + v, keys + j, D, scale, p[v] + j);
    }
}

// Makes the scores of one query probabilities, relative to the new maximum. Returns their sum, each
// key in the lane its position gives it; keys not seen are zeros there.
template <class Probability>
PITSTOP_INLINE float soften(
    float* scores, const Seen& seen, float old_max, float& new_max, Probability* p
) {
    for (std::int64_t j = 0; j < seen.begin; ++j) scores[j] = kNegInf;
    for (std::int64_t j = seen.end; j < kBlock; ++j) scores[j] = kNegInf;
    F32x16 s[4];
    for (int i = 0; i < 4; ++i) s[i] = load(scores + i * kLanes);
    const float block_max = max_lane(max(max(s[0], s[1]), max(s[2], s[3])));
    new_max = block_max > old_max ? block_max : old_max;
    for (int i = 0; i < 4; ++i) {
        s[i] = exp(s[i] - set1(new_max));
        store_probabilities(p + i * kLanes, s[i]);
    }
    return sum((s[0] + s[1]) + (s[2] + s[3]));
}

// Takes one block of keys into the state of every query that sees any of it.
template <class T>
void add_block(
    const AttentionArgs& args,
    const Tile<T>& tile,
    std::int64_t first,
    State& state,
    std::int64_t D_padded
) {
    const std::int64_t D = args.kv.head_dim;
    const std::int64_t begin = seen_by(tile.position[0], args.window, first).begin;
    const std::int64_t end = seen_by(tile.position[tile.num - 1], args.window, first).end;
    if (begin >= end) return;
    const T* keys[kBlock];
    const T* values[kBlock];
    locate(args.kv, tile, first, begin, end, keys, values);
    alignas(64) float scores[kTileQueries][kBlock];
    score_block(tile, keys, values, begin, end, D, args.scale, scores);

    Probabilities<T> p;
    Seen seen[kTileQueries];
    alignas(64) float alpha[kTileQueries] = {};  // first the differences of maxima, then their exp
    alignas(64) float block_sum[kTileQueries] = {};
    for (int v = 0; v < tile.num; ++v) {
        seen[v] = seen_by(tile.position[v], args.window, first);
        if (seen[v].begin >= seen[v].end) continue;  // alpha 1, sum 0: nothing changes
        float new_max;
        block_sum[v] = soften(scores[v], seen[v], state.max[v], new_max, p.of[v]);
        alpha[v] = state.max[v] - new_max;
        state.max[v] = new_max;
    }
    store(alpha, exp(load(alpha)));
    store(state.sum, fma(load(state.sum), load(alpha), load(block_sum)));

    fetch_keys(args, tile, first + kBlock);
    add_values_of_block(p, alpha, values, seen, tile.num, D, state.out, D_padded);
}

template <class T>
void add_segment(
    const AttentionArgs& args,
    const Tile<T>& tile,
    std::int64_t segment,
    State& state,
    std::int64_t D_padded
) {
    clear(state, tile.num, D_padded);
    for (std::int64_t first = segment * kSegment; first < (segment + 1) * kSegment;
         first += kBlock) {
        add_block(args, tile, first, state, D_padded);
    }
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
    if (part_sum == 0.f) return;  // the query sees nothing of this segment
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

template <class T>
void attend(const AttentionArgs& args, const Tile<T>& tile, std::int64_t D_padded) {
    State part;
    State total;
    clear(total, tile.num, D_padded);
    const Segments segments = segments_of(args, tile);
    for (std::int64_t segment = segments.begin; segment < segments.end; ++segment) {
        add_segment(args, tile, segment, part, D_padded);
        for (int v = 0; v < tile.num; ++v) {
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
    for (int v = 0; v < tile.num; ++v)
        write_query<T>(args, tile.index[v], total.out + v * D_padded, total.sum[v], D_padded);
}

// Where tiles are few and keys many, (tile, segment) pairs go to the threads, parts to the
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
    auto parts = [&](std::int64_t begin, std::int64_t end) {
        TilePlace place;
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t segment = i % num_segments;
            place.skip_to(args, i / num_segments);
            const Tile<T> tile = make_tile<T>(args, place);
            const Segments segments = segments_of(args, tile);
            if (segment < segments.begin || segment >= segments.end) continue;
            State state;
            add_segment(args, tile, segment, state, D_padded);
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
        TilePlace place;
        State total;
        for (std::int64_t i = begin; i < end; ++i) {
            place.skip_to(args, i);
            const Tile<T> tile = make_tile<T>(args, place);
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
    std::int64_t total_tiles = 0;
    for (std::int64_t r = 0; r < args.num_rows; ++r)
        total_tiles += num_tiles(args, r) * args.kv.num_kv_heads;
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
    // A range is worth waking a thread for at some 2^18 products; every tile is taken for a full
    // one.
    const std::int64_t products =
        min64(kTileQueries, args.q.rows * group_of(args)) * args.kv_len_max * D * 2;
    const std::int64_t grain = max64(1, (std::int64_t{1} << 18) / max64(1, products));
    auto tiles = [&](std::int64_t begin, std::int64_t end) {
        TilePlace place;
        for (std::int64_t i = begin; i < end; ++i) {
            place.skip_to(args, i);
            attend(args, make_tile<T>(args, place), padded_dim);
        }
    };
    for_ranges(args.stream, total_tiles, grain, tiles);
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
