// Turns the scores of a block into probabilities: the online softmax of a tile's queries.
//
// Included once per instruction set, like simd.h. Operations on all queries have a lane per query:
// maxima, exp of their differences, sums.
#pragma once

#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/attention_values.h"
#include "kernels/cpu/vmath.h"

#include <cstdint>

namespace pitstop::kernels::PITSTOP_ISA {

inline constexpr float kNegInf = -__builtin_inff();

// An online softmax over some of the keys, for each query of a tile.
struct State {
    alignas(64) float max[kTileQueries];
    alignas(64) float sum[kTileQueries];    // 0: no key visible yet
    float out[kTileQueries * kHeadDimMax];  // [num, D_padded], not yet divided by sum
};

[[gnu::noinline]] inline void clear(State& state, int num, std::int64_t D_padded) {
    store(state.max, set1(kNegInf));
    store(state.sum, zero());
    for (std::int64_t i = 0; i < num * D_padded; i += kLanes) store(state.out + i, zero());
}

// Stores the probabilities of 32 keys. None is a denormal: exp() has none.
PITSTOP_INLINE void store_probabilities(float* p, F32x16 low, F32x16 high) {
    store(p, low);
    store(p + kLanes, high);
}
PITSTOP_INLINE void store_probabilities(std::uint16_t* p, F32x16 low, F32x16 high) {
#if defined(__AVX512BF16__)
    _mm512_storeu_si512(p, __m512i(_mm512_cvtne2ps_pbh(high.v, low.v)));
#else
    store_u16(p, bf16_bits(low));
    store_u16(p + kLanes, bf16_bits(high));
#endif
}

// Updates the maxima and sums of `state` with the scores of a block, and turns the scores into
// probabilities relative to the new maxima; zero for invisible keys. alpha[v] is the factor for
// query v's earlier sums. A query that sees no key is unchanged.
template <class T>
PITSTOP_INLINE void soften(
    float (*scores)[kBlock],  // [num, kBlock], set for visible keys
    const Seen* seen,         // [num]
    int num,
    State& state,
    float* alpha,  // [kTileQueries]
    Probabilities<T>& p
) {
    F32x16 lanes[kTileQueries];
    for (int v = 0; v < kTileQueries; ++v) lanes[v] = set1(kNegInf);
    for (int v = 0; v < num; ++v) {
        if (seen[v].begin >= seen[v].end) continue;
        float* const s = scores[v];
        for (std::int64_t j = 0; j < seen[v].begin; ++j) s[j] = kNegInf;
        for (std::int64_t j = seen[v].end; j < kBlock; ++j) s[j] = kNegInf;
        lanes[v] =
            max(max(load(s), load(s + kLanes)), max(load(s + 2 * kLanes), load(s + 3 * kLanes)));
    }
    const F32x16 block_max = max_lanes(lanes);
    const F32x16 old_max = load(state.max);
    const F32x16 new_max = select(gt(block_max, old_max), block_max, old_max);
    const Mask16 sees_any = gt(new_max, set1(kNegInf));
    store(state.max, new_max);
    for (int v = 0; v < kTileQueries; ++v) lanes[v] = zero();
    for (int v = 0; v < num; ++v) {
        if (seen[v].begin >= seen[v].end) continue;
        const F32x16 most = set1(state.max[v]);
        F32x16 e[4];
        for (int i = 0; i < 4; ++i) e[i] = exp(load(scores[v] + i * kLanes) - most);
        store_probabilities(p.of[v], e[0], e[1]);
        store_probabilities(p.of[v] + 2 * kLanes, e[2], e[3]);
        lanes[v] = (e[0] + e[1]) + (e[2] + e[3]);
    }
    const F32x16 factors = exp(select(sees_any, old_max - new_max, zero()));
    store(alpha, factors);
    store(state.sum, fma(load(state.sum), factors, sums(lanes)));
}

}  // namespace pitstop::kernels::PITSTOP_ISA
