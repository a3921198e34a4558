// Stores a draw where the next ops need it, without the host: the next step embeds it
// (embedding.h), and logprobs.h reports its logprob.
//
//   ids[r]  kNotFiniteDraw if the row has logits that are not finite. Otherwise the id of the row's
//           choice. kDrewNothing if the choice's score is -inf, and kScoreNotFinite if it is +inf:
//           the row's own edits or temperature can cause either. 0 if the row is only scored, and
//           has no choice
//   kept_mins[r], if not null: the choice's kept_min; -inf without a choice
//   Each if not null: *token = ids[r], pick->id = the choice's id, and softmax->kept_min = the
//   choice's kept_min
//
//   rows           [R]
//   num_nonfinite  [R]  int32 (nonfinite.h)
#pragma once

#include "base/ids.h"
#include "kernels/logprobs.h"
#include "kernels/sampling.h"
#include "kernels/tensor.h"

#include <limits>

namespace pitstop::kernels {

inline constexpr TokenId kNotFiniteDraw{-1};
inline constexpr TokenId kDrewNothing{-2};
inline constexpr TokenId kScoreNotFinite{-3};

// Returns the result of a row's draw. Scores are never NaN (sampling.h).
[[nodiscard]] constexpr TokenId drawn_id(const Choice& choice) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    if (choice.score == kInf) return kScoreNotFinite;
    return choice.score != -kInf ? choice.id : kDrewNothing;
}

// The draw of a row of logits, and where to store it.
struct DrawnRow {
    const Choice* choice = nullptr;  // null if the row is scored and nothing is drawn
    TokenId* token = nullptr;        // like `pick` and `softmax`, different for all rows
    LogitPick* pick = nullptr;
    SoftmaxRow* softmax = nullptr;
};

struct NoteDrawsArgs {
    const DrawnRow* rows = nullptr;               // [R]
    const std::int32_t* num_nonfinite = nullptr;  // [R]
    std::int64_t num_rows = 0;                    // R
    TokenId* ids = nullptr;                       // [R], written
    float* kept_mins = nullptr;                   // [R], written; or null
    Stream stream{};
};

void check(const NoteDrawsArgs& args);
void note_draws_ref(const NoteDrawsArgs& args);
void note_draws_cuda(const NoteDrawsArgs& args);

}  // namespace pitstop::kernels
