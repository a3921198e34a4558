// Adds the values of a block of keys, weighted by their probabilities, to the outputs of
// some queries.
//
// Included once per instruction set, like simd.h. fp32 values are added key by key. bf16 values are
// added by pairs of keys (2i, 2i + 1) of the block, with probabilities rounded to bf16. `out` then
// has each group of 32 elements in the order of interleave(), and in_order() restores it. An
// invisible key counts as zero, whatever its memory contains.
#pragma once

#include "kernels/cpu/attention_blocks.h"

#include <cstdint>
#include <type_traits>

namespace pitstop::kernels::PITSTOP_ISA {

// How many queries' values are summed together, and in how many vectors of sums. The other
// registers hold values and probabilities.
#if defined(__AVX512F__)
constexpr int kValueQueriesMax = 8;
constexpr int kValueAccumulators = 16;  // of 32 registers
#else
constexpr int kValueQueriesMax = 2;
constexpr int kValueAccumulators = 4;  // of two registers each
#endif

// The number of elements added together: those of one vector of fp32, or of two interleaved vectors
// of bf16.
template <class T>
constexpr std::int64_t kValueStep = std::is_same_v<T, bf16> ? 2 * kLanes : kLanes;

template <class T>
constexpr std::int64_t padded_head_dim(std::int64_t D) {
    return (D + kValueStep<T> - 1) / kValueStep<T> * kValueStep<T>;
}

// The probabilities of a tile's queries over a block of keys: zero for invisible keys.
template <class T>
struct Probabilities {
    using Element = std::conditional_t<std::is_same_v<T, bf16>, std::uint16_t, float>;
    alignas(64) Element of[kTileQueries][kBlock];
};
// load_scaled() loads the outputs of queries times alpha, and store_sums() stores them. `out`
// points to an element of [kQueries, D_padded].
template <int kQueries, int kVectors>
PITSTOP_INLINE void load_scaled(
    F32x16 (&acc)[kQueries][kVectors], const float* out, std::int64_t D_padded, const float* alpha
) {
    for (int i = 0; i < kQueries; ++i) {
        for (int c = 0; c < kVectors; ++c)
            acc[i][c] = load(out + i * D_padded + c * kLanes) * set1(alpha[i]);
    }
}
template <int kQueries, int kVectors>
PITSTOP_INLINE void store_sums(
    float* out, std::int64_t D_padded, const F32x16 (&acc)[kQueries][kVectors]
) {
    for (int i = 0; i < kQueries; ++i) {
        for (int c = 0; c < kVectors; ++c) store(out + i * D_padded + c * kLanes, acc[i][c]);
    }
}

// Computes out[i] = out[i] * alpha[i] + sum_j p[i][j] * values[j], j ascending, for elements [d, d
// + kVectors * 16), or the remaining ones if kVectors is 1.
template <int kQueries, int kVectors>
PITSTOP_INLINE void add_some_values(
    const float (*p)[kBlock],
    const float* alpha,
    const float* const* values,
    const Seen& seen,
    std::int64_t d,
    std::int64_t D,
    float* out,  // [kQueries, D_padded]
    std::int64_t D_padded,
    FetchAhead<float>& ahead
) {
    F32x16 acc[kQueries][kVectors];
    load_scaled(acc, out + d, D_padded, alpha);
    for (std::int64_t j = seen.begin; j < seen.end; ++j) {
        ahead.fetch_some(1);
        F32x16 value[kVectors];
        for (int c = 0; c < kVectors; ++c) {
            value[c] =
                kVectors > 1 ? load(values[j] + d + c * kLanes) : load_up_to(values[j] + d, D - d);
        }
        for (int i = 0; i < kQueries; ++i) {
            const F32x16 probability = set1(p[i][j]);
            for (int c = 0; c < kVectors; ++c) acc[i][c] = fma(probability, value[c], acc[i][c]);
        }
    }
    store_sums(out + d, D_padded, acc);
}

// Adds bf16 values: pairs of keys in ascending order, the odd key of a pair first. REQUIRES:
// kVectors is even.
template <int kQueries, int kVectors>
PITSTOP_INLINE void add_some_values(
    const std::uint16_t (*p)[kBlock],
    const float* alpha,
    const bf16* const* values,
    const Seen& seen,
    std::int64_t d,
    std::int64_t D,
    float* out,  // [kQueries, D_padded]
    std::int64_t D_padded,
    FetchAhead<bf16>& ahead
) {
    constexpr int kPairs = kVectors / 2;
    F32x16 acc[kQueries][kVectors];
    load_scaled(acc, out + d, D_padded, alpha);
    const auto add_pair = [&](std::int64_t j, bool sees_even, bool sees_odd) PITSTOP_INLINE_LAMBDA {
        ahead.fetch_some(2);
        Bf16x32 low[kPairs];
        Bf16x32 high[kPairs];
        for (int c = 0; c < kPairs; ++c) {
            const std::int64_t at = d + c * kValueStep<bf16>;
            const auto load_value = [&](std::int64_t key, bool sees) PITSTOP_INLINE_LAMBDA {
                return !sees ? Bf16x32{}
                       : kVectors > 2 || D - at >= 2 * kLanes
                           ? load_pairs(values[key] + at)
                           : load_pairs(values[key] + at, D - at);
            };
            interleave(load_value(j, sees_even), load_value(j + 1, sees_odd), low[c], high[c]);
        }
        for (int i = 0; i < kQueries; ++i) {
            const Bf16x32 both = set1_pair(p[i] + j);
            for (int c = 0; c < kPairs; ++c) {
                acc[i][2 * c] = dot_pairs(acc[i][2 * c], both, low[c]);
                acc[i][2 * c + 1] = dot_pairs(acc[i][2 * c + 1], both, high[c]);
            }
        }
    };
    std::int64_t j = seen.begin / 2 * 2;
    if (j < seen.begin) {
        add_pair(j, false, true);
        j += 2;
    }
    for (; j + 2 <= seen.end; j += 2) add_pair(j, true, true);
    if (j < seen.end) add_pair(j, true, false);
    store_sums(out + d, D_padded, acc);
}

// Adds the values of the keys that all kQueries queries see.
template <class T, int kQueries>
void add_values(
    const typename Probabilities<T>::Element (*p)[kBlock],
    const float* alpha,
    const T* const* values,
    const Seen& seen,
    std::int64_t D,
    float* out,  // [kQueries, D_padded]
    std::int64_t D_padded,
    FetchAhead<T>& ahead
) {
    constexpr int kLeast = kValueStep<T> / kLanes;
    constexpr int kMost = kValueAccumulators / kQueries < 8 ? kValueAccumulators / kQueries : 8;
    constexpr int kVectors = kMost > kLeast ? kMost : kLeast;
    std::int64_t d = 0;
    for (; d + kVectors * kLanes <= D; d += kVectors * kLanes)
        add_some_values<kQueries, kVectors>(p, alpha, values, seen, d, D, out, D_padded, ahead);
    for (; d < D; d += kLeast * kLanes)
        add_some_values<kQueries, kLeast>(p, alpha, values, seen, d, D, out, D_padded, ahead);
}

// Adds to each query of a tile the values of the keys that it sees. Queries are grouped: first the
// keys that a whole group sees, up to a whole pair, then the remaining keys of each query. So the
// order of a query's sum does not depend on its group. Meanwhile fetches the same number of values
// from `ahead`.
template <class T>
PITSTOP_INLINE void add_values_of_block(
    const Probabilities<T>& p,
    const float* alpha,
    const T* const* values,
    const Seen* seen,  // [num], positions ascending
    int num,
    std::int64_t D,
    float* out,  // [num, D_padded]
    std::int64_t D_padded,
    FetchAhead<T>& ahead
) {
    const auto add = [&]<int kQueries>(int v, const Seen& keys, const float* factors) {
        add_values<T, kQueries>(
            p.of + v, factors, values, keys, D, out + v * D_padded, D_padded, ahead
        );
    };
    for (int v = 0; v < num;) {
        if (seen[v].begin >= seen[v].end) {
            ++v;
            continue;
        }
        int group = 1;
        while (group < kValueQueriesMax && v + group < num && seen[v + group].begin == seen[v].begin
        ) {
            ++group;
        }
        group = group == 8 ? 8 : group >= 4 ? 4 : group >= 2 ? 2 : 1;
        const bool is_same = seen[v + group - 1].end == seen[v].end;
        const Seen common{seen[v].begin, is_same ? seen[v].end : seen[v].end / 2 * 2};
        const bool any_common = common.begin < common.end;
        if (any_common) {
            if (group == 8) {
                add.template operator()<8>(v, common, alpha + v);
            } else if (group == 4) {
                add.template operator()<4>(v, common, alpha + v);
            } else if (group == 2) {
                add.template operator()<2>(v, common, alpha + v);
            } else {
                add.template operator()<1>(v, common, alpha + v);
            }
        }
        const float one = 1.f;
        for (int i = v; i < v + group && !is_same; ++i) {
            const Seen rest{any_common ? common.end : seen[i].begin, seen[i].end};
            if (rest.begin < rest.end)
                add.template operator()<1>(i, rest, any_common ? &one : alpha + i);
        }
        v += group;
    }
}

// Returns a query's sums with their elements in order: `out` itself, or `ordered` filled.
template <class T>
PITSTOP_INLINE const float* in_order(const float* out, float* ordered, std::int64_t D_padded) {
    if constexpr (!std::is_same_v<T, bf16>) {
        return out;
    } else {
        for (std::int64_t d = 0; d < D_padded; d += 2 * kLanes) {
            for (std::int64_t i = 0; i < kLanes; i += 4) {
                __builtin_memcpy(ordered + d + 2 * i, out + d + i, 4 * sizeof(float));
                __builtin_memcpy(ordered + d + 2 * i + 4, out + d + kLanes + i, 4 * sizeof(float));
            }
        }
        return ordered;
    }
}

}  // namespace pitstop::kernels::PITSTOP_ISA
