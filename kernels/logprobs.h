// Log-probabilities and ranks of chosen, given and best ids, computed by four small ops. So a
// vocabulary that is split over ranks needs no gathered logits: each rank reduces its part, and the
// parts are merged in rank order.
//
//   logprob(i) = x[i] - log(sum_j exp(x[j]))     over the kept j (x[j] >= kept_min)
//   x[i] = logits[i] * (1 / temperature)
//
// The three modes differ in their inputs:
//   raw        (the default) logits before penalties and bias, temperature 1, kept_min -inf
//   scaled     after penalties and bias, the request's temperature (1 if it is greedy)
//   truncated  as scaled, and kept_min from the Choice (sampling.h); an id not kept has -inf
//
// Sums use 16 lanes of fp32 per block of kVocabBlock ids, then the blocks in double, ascending:
// only V_rank sets that order, so scoring gives the same bits as sampling (P6).
#pragma once

#include "base/ids.h"
#include "kernels/tensor.h"

#include <limits>

namespace pitstop::kernels {

struct SoftmaxStats {
    float max = -std::numeric_limits<float>::infinity();  // the largest x of the kept ids
    double sum = 0.0;  // the sum of exp(x - max) over them; 0 if none is kept
};

// Merges two parts of one row. Parts are merged in rank order, because the sum rounds.
[[nodiscard]] SoftmaxStats merge(const SoftmaxStats& a, const SoftmaxStats& b);

// x is the scaled logit. Returns -inf for x = -inf or x < kept_min.
[[nodiscard]] float logprob(float x, float kept_min, const SoftmaxStats& stats);

struct SoftmaxRow {
    float temperature = 1.f;                                   // > 0
    float kept_min = -std::numeric_limits<float>::infinity();  // in units of x
};

struct SoftmaxStatsArgs {
    static constexpr std::int64_t kVocabBlock = 4096;

    View2<const float> logits{};       // [R, V_rank]
    const SoftmaxRow* rows = nullptr;  // [R]
    SoftmaxStats* stats = nullptr;     // [R], written
    Workspace workspace{};             // at least softmax_stats_workspace_bytes()
    Stream stream{};
};

void check(const SoftmaxStatsArgs& args);
void softmax_stats_ref(const SoftmaxStatsArgs& args);
void softmax_stats_cuda(const SoftmaxStatsArgs& args);
[[nodiscard]] std::int64_t softmax_stats_workspace_bytes(
    std::int64_t num_rows, std::int64_t vocab_len
);

// Picks the logits of given ids: values[i] = logits[picks[i].row, picks[i].id - vocab_begin], or
// -inf if the id is outside this rank's part. So the maximum over the ranks is the logit.
struct LogitPick {
    std::int32_t row = 0;
    TokenId id{};
};

struct PickLogitsArgs {
    View2<const float> logits{};  // [R, V_rank]
    std::int64_t vocab_begin = 0;
    const LogitPick* picks = nullptr;  // [num_picks]
    std::int64_t num_picks = 0;
    float* values = nullptr;  // [num_picks], written
    Stream stream{};
};

void check(const PickLogitsArgs& args);
void pick_logits_ref(const PickLogitsArgs& args);
void pick_logits_cuda(const PickLogitsArgs& args);

// Counts the logits of this rank's part that precede a pick in the order of top_logits: larger
// ones, and equal ones with a lower id. One plus the sum over the ranks is the pick's rank in the
// vocabulary. A NaN precedes nothing.
struct CountBeforeArgs {
    View2<const float> logits{};  // [R, V_rank]
    std::int64_t vocab_begin = 0;
    const LogitPick* picks = nullptr;  // [num_picks]
    const float* values = nullptr;     // [num_picks]: their logits, from the rank that has them
    std::int64_t num_picks = 0;
    std::int32_t* counts = nullptr;  // [num_picks], written
    Stream stream{};
};

void check(const CountBeforeArgs& args);
void count_before_ref(const CountBeforeArgs& args);
void count_before_cuda(const CountBeforeArgs& args);

// Finds the n largest logits of each row, descending, the lower id first on a tie. NaN
// counts as -inf.
struct TopLogitsArgs {
    static constexpr std::int64_t kTopMax = 1024;

    View2<const float> logits{};  // [R, V_rank]
    std::int64_t vocab_begin = 0;
    View2<TokenId> ids{};   // [R, n], n <= V_rank and n <= kTopMax; written
    View2<float> values{};  // [R, n]; written
    Stream stream{};
};

void check(const TopLogitsArgs& args);
void top_logits_ref(const TopLogitsArgs& args);
void top_logits_cuda(const TopLogitsArgs& args);

}  // namespace pitstop::kernels
