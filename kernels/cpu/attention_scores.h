// Scores queries against a block of keys. A score is a sum of sixteen lanes over D, then the tree
// of sum(). Two methods give the same bits.
//
// Included once per instruction set, like simd.h. For few queries the keys are read in place: a
// lane has every sixteenth word of a query and a key, and a tree reduces the lanes of each sum. For
// many queries the keys are packed, one key per lane: each lane of the first method becomes a
// separate sum, and no instruction crosses lanes. All queries share the cost of packing.
#pragma once

#include "kernels/cpu/attention_blocks.h"

#include <cstdint>

namespace pitstop::kernels::PITSTOP_ISA {

// A lane's unit: an element of fp32, or a pair of bf16 whose second is zero beyond D.
template <class T>
struct Word;
template <>
struct Word<bf16> {
    using Vector = Bf16x32;
    static constexpr std::int64_t kElements = 2;
    // Loads the words of `n` elements, at most sixteen words; the rest is zero.
    PITSTOP_INLINE static Vector load(const bf16* p, std::int64_t n) {
        return n >= kElements * kLanes ? load_pairs(p) : load_pairs(p, n);
    }
    PITSTOP_INLINE static U32x16 bits(Vector v) { return words_of(v); }
    PITSTOP_INLINE static Vector of_bits(U32x16 words) { return pairs_of(words); }
    // Returns the word of the `n` elements at p, at least one, in every lane.
    PITSTOP_INLINE static Vector repeat(const bf16* p, std::int64_t n) {
        return n >= kElements ? set1_pair(&p->bits) : pairs_of(set1_u32(p->bits));
    }
    PITSTOP_INLINE static F32x16 accumulate(F32x16 acc, Vector a, Vector b) {
        return dot_pairs(acc, a, b);
    }
};
template <>
struct Word<float> {
    using Vector = F32x16;
    static constexpr std::int64_t kElements = 1;
    PITSTOP_INLINE static Vector load(const float* p, std::int64_t n) { return load_up_to(p, n); }
    PITSTOP_INLINE static U32x16 bits(Vector v) { return as_u32(v); }
    PITSTOP_INLINE static Vector of_bits(U32x16 words) { return as_f32(words); }
    PITSTOP_INLINE static Vector repeat(const float* p, std::int64_t) { return set1(*p); }
    PITSTOP_INLINE static F32x16 accumulate(F32x16 acc, Vector a, Vector b) {
        return fma(a, b, acc);
    }
};
template <class T>
constexpr std::int64_t kRowElements = Word<T>::kElements* kLanes;  // elements of a key in a vector

// Computes scores[i][j] = scale * queries[i] . keys[j] for kQueries queries and 4 keys.
template <class T, int kQueries>
PITSTOP_INLINE void score4(
    const T* const* queries,
    const T* const* keys,
    std::int64_t D,
    float scale,
    float* scores  // [kQueries, kBlock], from the column of keys[0]
) {
    using W = Word<T>;
    F32x16 acc[kQueries][4];
    for (int i = 0; i < kQueries; ++i) {
        for (int j = 0; j < 4; ++j) acc[i][j] = zero();
    }
    const auto step = [&](std::int64_t d, std::int64_t n) PITSTOP_INLINE_LAMBDA {
        typename W::Vector key[4];
        for (int j = 0; j < 4; ++j) key[j] = W::load(keys[j] + d, n);
        for (int i = 0; i < kQueries; ++i) {
            const typename W::Vector query = W::load(queries[i] + d, n);
            for (int j = 0; j < 4; ++j) acc[i][j] = W::accumulate(acc[i][j], query, key[j]);
        }
    };
    std::int64_t d = 0;
    for (; d + kRowElements<T> <= D; d += kRowElements<T>) step(d, kRowElements<T>);
    if (d < D) step(d, D - d);
    F32x16 products[kLanes];  // repeats if there are fewer queries: the compiler adds each once
    for (int i = 0; i < kLanes; ++i) products[i] = acc[i / 4 % kQueries][i % 4];
    alignas(64) float scaled[kLanes];
    store(scaled, PITSTOP_ISA::sums(products) * set1(scale));
    for (std::int64_t i = 0; i < kQueries; ++i)
        __builtin_memcpy(scores + i * kBlock, scaled + i * 4, 4 * sizeof(float));
}

// Scores all queries of a tile against the keys of a block that any of them sees, four at a time;
// an incomplete group of four is filled with copies. Meanwhile fetches the same number of keys
// from `ahead`.
template <class T>
PITSTOP_INLINE void score_block(
    const Tile<T>& tile,
    const T** keys,  // [kBlock], set for visible keys
    const Seen& any,
    std::int64_t D,
    float scale,
    float (*p)[kBlock],  // [tile.num, kBlock]
    FetchAhead<T>& ahead
) {
    const std::int64_t begin = any.begin;
    const std::int64_t end = any.end;
    const std::int64_t four_begin = begin / 4 * 4;
    const std::int64_t four_end = (end + 3) / 4 * 4;
    for (std::int64_t j = four_begin; j < begin; ++j) keys[j] = keys[begin];
    for (std::int64_t j = end; j < four_end; ++j) keys[j] = keys[end - 1];
    for (std::int64_t j = four_begin; j < four_end; j += 4) {
        ahead.fetch_some(4);
        int v = 0;
        for (; v + 4 <= tile.num; v += 4)
            score4<T, 4>(tile.queries + v, keys + j, D, scale, p[v] + j);
        for (; v + 2 <= tile.num; v += 2)
            score4<T, 2>(tile.queries + v, keys + j, D, scale, p[v] + j);
        for (; v < tile.num; ++v) score4<T, 1>(tile.queries + v, keys + j, D, scale, p[v] + j);
    }
}

// queries of a tile: with fewer, packing costs more than it saves
constexpr int kPackedQueriesMin = 8;

// The packed keys of a block: word i of key j in [i][j].
template <class T>
struct PackedKeys {
    alignas(64) std::uint32_t words[kHeadDimMax / Word<T>::kElements][kBlock];
};

// Packs the keys of a block, filled up to whole vectors with copies of one of them.
template <class T>
PITSTOP_INLINE void pack_keys(Block<T>& block, std::int64_t D, PackedKeys<T>& packed) {
    using W = Word<T>;
    const T** const keys = block.keys;
    const std::int64_t begin = block.begin;
    const std::int64_t end = block.end;
    const std::int64_t vectors_begin = begin / kLanes * kLanes;
    const std::int64_t vectors_end = (end + kLanes - 1) / kLanes * kLanes;
    for (std::int64_t j = vectors_begin; j < begin; ++j) keys[j] = keys[begin];
    for (std::int64_t j = end; j < vectors_end; ++j) keys[j] = keys[end - 1];
    for (std::int64_t j = vectors_begin; j < vectors_end; j += kLanes) {
        for (std::int64_t d = 0; d < D; d += kRowElements<T>) {
            U32x16 rows[kLanes];
            for (int i = 0; i < kLanes; ++i) rows[i] = W::bits(W::load(keys[j + i] + d, D - d));
            transpose16(rows);
            for (int i = 0; i < kLanes; ++i)
                store_u32(packed.words[d / W::kElements + i] + j, rows[i]);
        }
    }
}

// How many queries and vectors of packed keys are scored together. Registers hold two levels of the
// tree besides the keys and a query.
#if defined(__AVX512F__)
constexpr int kScoreQueries = 4;
constexpr int kScoreVectors = 2;
#else
constexpr int kScoreQueries = 2;
constexpr int kScoreVectors = 1;
#endif

// Scores kQueries queries against kVectors vectors of packed keys from `first` on.
template <class T, int kQueries, int kVectors>
struct PackedScores {
    using W = Word<T>;
    struct Sums {
        F32x16 of[kQueries][kVectors];
    };
    const T* const* queries;
    const PackedKeys<T>& keys;
    std::int64_t first;
    std::int64_t D;

    // Returns the sums over words `lane`, `lane` + 16, ...: the part that score4() computes in this
    // lane.
    PITSTOP_INLINE Sums sum_lane(std::int64_t lane) const {
        Sums sums;
        for (int i = 0; i < kQueries; ++i) {
            for (int c = 0; c < kVectors; ++c) sums.of[i][c] = zero();
        }
        for (std::int64_t d = lane * W::kElements; d < D; d += kRowElements<T>) {
            typename W::Vector key[kVectors];
            for (int c = 0; c < kVectors; ++c) {
                key[c] = W::of_bits(load_u32(keys.words[d / W::kElements] + first + c * kLanes));
            }
            for (int i = 0; i < kQueries; ++i) {
                const typename W::Vector query = W::repeat(queries[i] + d, D - d);
                for (int c = 0; c < kVectors; ++c)
                    sums.of[i][c] = W::accumulate(sums.of[i][c], query, key[c]);
            }
        }
        return sums;
    }

    // Returns the sum over those of the sixteen lanes `lane`, `lane` + kStep, ..., by the tree of
    // sum().
    template <int kStep>
    PITSTOP_INLINE Sums sum_lanes(std::int64_t lane) const {
        if constexpr (kStep == kLanes) {
            return sum_lane(lane);
        } else {
            Sums sums = sum_lanes<2 * kStep>(lane);
            const Sums others = sum_lanes<2 * kStep>(lane + kStep);
            for (int i = 0; i < kQueries; ++i) {
                for (int c = 0; c < kVectors; ++c) sums.of[i][c] += others.of[i][c];
            }
            return sums;
        }
    }

    PITSTOP_INLINE void write(float scale, float (*p)[kBlock]) const {
        const Sums sums = sum_lanes<1>(0);
        for (int i = 0; i < kQueries; ++i) {
            for (int c = 0; c < kVectors; ++c)
                store(p[i] + first + c * kLanes, sums.of[i][c] * set1(scale));
        }
    }
};

// Scores all queries of a tile against keys [begin, end) of a block, which are packed.
template <class T>
PITSTOP_INLINE void score_packed_block(
    const Tile<T>& tile,
    const PackedKeys<T>& keys,
    std::int64_t begin,
    std::int64_t end,
    std::int64_t D,
    float scale,
    float (*p)[kBlock]  // [tile.num, kBlock]
) {
    const auto score = [&]<int kVectors>(std::int64_t first) {
        const T* const* const queries = tile.queries;
        int v = 0;
        for (; v + kScoreQueries <= tile.num; v += kScoreQueries)
            PackedScores<T, kScoreQueries, kVectors>{queries + v, keys, first, D}.write(
                scale, p + v
            );
        for (; v < tile.num; ++v)
            PackedScores<T, 1, kVectors>{queries + v, keys, first, D}.write(scale, p + v);
    };
    std::int64_t first = begin / kLanes * kLanes;
    for (; first + (kScoreVectors - 1) * kLanes < end; first += kScoreVectors * kLanes)
        score.template operator()<kScoreVectors>(first);
    for (; first < end; first += kLanes) score.template operator()<1>(first);
}

}  // namespace pitstop::kernels::PITSTOP_ISA
