// Draws among the ids of a row by a race: each id's score is x plus Gumbel noise, and the best
// score wins with the probability of a softmax over x (Gumbel-max; Gumbel 1954). The noise is a
// function of the row's seed, the position and the id (philox.h).
#pragma once

#include "kernels/device/ordered.h"
#include "kernels/device/reduce.cuh"
#include "kernels/philox.h"
#include "kernels/sampling.h"

#include <cuda_runtime.h>

#include <array>
#include <cstdint>

namespace pitstop::kernels {

__device__ inline float negative_infinity() { return __uint_as_float(0xff800000u); }

// The best score of a part of a row, and its id in the row.
struct RacePart {
    float score;
    std::int32_t id;
};

__device__ inline bool is_better(float score, std::int32_t id, const RacePart& best) {
    return score > best.score || (score == best.score && id < best.id);
}
__device__ inline RacePart warp_best(RacePart best) {
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
        const float score = __shfl_xor_sync(kAllLanes, best.score, offset);
        const std::int32_t id = __shfl_xor_sync(kAllLanes, best.id, offset);
        if (is_better(score, id, best)) best = {score, id};
    }
    return best;
}
template <int kBlockThreads>
__device__ RacePart block_best(RacePart best) {
    __shared__ RacePart parts[kBlockThreads / kWarp];
    best = warp_best(best);
    __syncthreads();
    if (lane_index() == 0) parts[warp_index()] = best;
    __syncthreads();
    best = parts[0];
    for (int warp = 1; warp < kBlockThreads / kWarp; ++warp)
        if (is_better(parts[warp].score, parts[warp].id, best)) best = parts[warp];
    return best;
}

// Computes -log(-log1p(-v)), v = (bits + 0.5) 2^-32. Near v = 1 the difference 1 - v comes from the
// bits: in fp32 v would round to 1, whose score is minus infinity.
__device__ inline float gumbel(std::uint32_t bits) {
    const float exponential = bits < 0x80000000u
                                  ? -log1pf(-(static_cast<float>(bits) + 0.5f) * 0x1p-32f)
                                  : -logf((static_cast<float>(~bits) + 0.5f) * 0x1p-32f);
    return -logf(exponential);
}
// Never below gumbel(bits): E >= v, so -log(E) <= -log(v). The margin covers __logf's error
// (2^-21.4 near 1, else 2 ulp of at most 23) and gumbel's own.
__device__ inline float gumbel_bound(std::uint32_t bits) {
    return -__logf((static_cast<float>(bits) + 0.5f) * 0x1p-32f) + 1e-3f;
}

__device__ inline std::array<std::uint32_t, 4> draw(const SampleRow& row, std::int64_t id_div_4) {
    return philox(
        {static_cast<std::uint32_t>(id_div_4), row.position, 0, 0},
        {static_cast<std::uint32_t>(row.seed), static_cast<std::uint32_t>(row.seed >> 32)}
    );
}

// Runs the race for four neighbours, from id `first` of the row on. The row begins at id
// vocab_begin of the whole vocabulary. Skips ids whose x is -inf and those that cannot reach
// to_beat, whose logarithms are not computed.
__device__ inline void race(
    const SampleRow& row,
    std::int64_t vocab_begin,
    std::int32_t first,
    const float (&x)[4],
    float to_beat,
    RacePart& best
) {
    const bool is_whole_draw = vocab_begin % 4 == 0;  // four neighbours share a draw
    const std::int64_t id = vocab_begin + first;      // in the whole vocabulary
    std::array<std::uint32_t, 4> words{};
    if (is_whole_draw) words = draw(row, id / 4);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const std::uint32_t bits =
            is_whole_draw ? words[static_cast<std::size_t>(k)]
                          : draw(row, (id + k) / 4)[static_cast<std::size_t>((id + k) % 4)];
        if (x[k] + gumbel_bound(bits) < to_beat || x[k] == negative_infinity()) continue;
        const float score = x[k] + gumbel(bits);
        if (score > best.score) best = {score, first + k};  // ids ascend: a tie keeps the earlier
    }
}
// Returns the best score of the warp so far.
__device__ inline float score_to_beat(const RacePart& best) {
    return from_ordered_image(__reduce_max_sync(kAllLanes, ordered_image(best.score)));
}

}  // namespace pitstop::kernels
