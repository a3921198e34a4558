// Chooses one id per row of logits, without sorting the vocabulary.
//
//   x[i] = logits[i] * (1 / temperature)
//   kept: x[i] >= kept_min, the highest of three thresholds; ids equal to it are kept:
//     min-p  x[i] >= max(x) + log(min_p)
//     top-k  the top_k-th largest x
//     top-p  over what min-p and top-k left: the largest threshold whose ids together hold at least
//            top_p of the mass. Mass is counted in integers, round(exp(x - max) * 2^40), so that
//            the sum has no order
//   score[i] = x[i] + g[i],  g[i] = -log(-log1p(-v[i])),  v[i] = (bits[i] + 0.5) * 2^-32
//   the choice is the kept id with the highest score, the lower id on a tie (the Gumbel-max trick;
//   Maddison et al. 2014, arXiv:1411.0030). temperature 0: greedy, score[i] = logits[i], no draw.
//
//   bits[i] = word (i mod 4) of Philox4x32-10 (Salmon et al. 2011), key (seed low, seed high),
//             counter (i / 4, position, 0, 0)
// with i the id in the whole vocabulary: a request's draws depend on its seed and the
// position alone, not on the batch, the step, an interruption, or how the vocabulary is split
// over ranks (P6).
//
//   logits  [R, V_rank]  fp32, after penalties; ids vocab_begin .. vocab_begin + V_rank. A row that
//                        truncates (top_k, top_p, min_p) needs the whole vocabulary here; one that
//                        does not may be split over ranks: sample each part, keep better() of them.
// A NaN is taken as -inf. A row of nothing but -inf chooses its first id. A row with +inf chooses
// the lowest id that has +inf.
#pragma once

#include "base/ids.h"
#include "kernels/tensor.h"

#include <limits>

namespace pitstop::kernels {

inline constexpr std::int32_t kTopKOff = std::numeric_limits<std::int32_t>::max();

// The race over a row is split at multiples of this from the first id; the choice does not depend
// on it.
inline constexpr std::int64_t kSampleVocabBlock = 8192;

struct SampleRow {
    float temperature = 0.f;        // 0: greedy
    std::int32_t top_k = kTopKOff;  // >= 1
    float top_p = 1.f;              // (0, 1]; 1: off
    float min_p = 0.f;              // [0, 1]; 0: off
    std::uint64_t seed = 0;
    // The position of the id in its request: prompt_len + index in the output, minus the
    // call's first_position.
    std::uint32_t position = 0;
    // rows on a device are compared as bytes, so the struct must have no gap
    std::uint32_t no_gap = 0;
};

// Returns whether the row's choice is among fewer than all `num_ids`.
[[nodiscard]] constexpr bool is_truncating(const SampleRow& row, std::int64_t num_ids) {
    return row.temperature != 0.f && (row.top_k < num_ids || row.top_p < 1.f || row.min_p > 0.f);
}

struct Choice {
    TokenId id{};
    float score = 0.f;
    float kept_min = -std::numeric_limits<float>::infinity();  // lowest kept x; -inf: all were kept
};

[[nodiscard]] inline Choice better(const Choice& a, const Choice& b) {
    if (a.score != b.score) return a.score > b.score ? a : b;
    return a.id < b.id ? a : b;
}

struct SampleArgs {
    static constexpr std::int64_t kArrivals = 256;

    View2<const float> logits{};  // [R, V_rank]
    std::int64_t vocab_begin = 0;
    const SampleRow* rows = nullptr;  // [R]
    // Added to each row's position, modulo 2^32: rows that advance by one each call stay the same.
    std::uint32_t first_position = 0;
    // False: is_truncating() is false for every row, and a GPU needs one launch instead of four.
    bool may_truncate = true;
    Choice* choices = nullptr;              // [R], written
    std::int32_t* num_nonfinite = nullptr;  // [R], written like count_nonfinite; or null
    Workspace workspace{};                  // at least sample_workspace_bytes()
    // [kArrivals]; a GPU needs it for the single launch: zeros before the first call, zeros after
    // each. Calls that share it run in turn.
    std::uint32_t* arrivals = nullptr;
    Stream stream{};
};

// The two thresholds that need a transcendental or a rounding: one function for all
// implementations.
[[nodiscard]] float min_p_threshold(float max, float min_p);  // max + log(min_p); -inf if min_p = 0
[[nodiscard]] std::uint64_t top_p_target(
    float top_p, std::uint64_t total_mass
);  // ceil, in [1, total]

inline constexpr float kMassOne = 0x1p40f;  // the mass of the best id; 2^23 ids fit into 64 bits

void check(const SampleArgs& args);
void sample_ref(const SampleArgs& args);
void sample_cuda(const SampleArgs& args);

[[nodiscard]] std::int64_t sample_workspace_bytes(std::int64_t num_rows, std::int64_t vocab_len);
[[nodiscard]] std::int64_t sample_cuda_workspace_bytes(
    std::int64_t num_rows, std::int64_t vocab_len
);

}  // namespace pitstop::kernels
