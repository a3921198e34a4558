// Holds what one call of the sampler (tp_worker/model/sampler.h) works on: rows of logits, and what
// is drawn and reported of them.
#pragma once

#include "base/ids.h"
#include "base/view.h"
#include "kernels/ops.h"
#include "tp_worker/model/request_state.h"
#include "tp_worker/model/step_batch.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pitstop::tp_worker {

// Holds a row of the call, and what follows from its request.
struct SampledRow {
    const LogitRow* place = nullptr;
    const RequestState* request = nullptr;  // until the call is enqueued: the next step may set its
                                            // slot up anew
    bool is_sample = false;                 // else it scores
    bool is_ranked = false;                 // its rank among all is wanted
    std::int64_t num_top = 0;               // best ids that are wanted, at most V
    std::size_t num_ids = 0;                // ids that were asked for
    bool is_raw = false;                    // its logprobs are of the logits as the model made them
    bool is_truncated = false;              // they are of what was kept for the draw
    bool is_edited = false;                 // it is drawn from logits after penalties and bias
    bool is_whole = true;                   // its logits are needed in one place (rank_call.h)
    bool sums_parts = false;                // its softmax sums are merged of the ranks'
    kernels::SampleRow draw{};  // for a sample; its position counts from the call's first

    // Tells whether its logprobs are of the edited logits.
    [[nodiscard]] bool reports_edited() const { return is_edited && !is_raw; }
};

// Holds logits side by side, some of whose rows are drawn from, and some reported from: those that
// the model made, or the edited copies. [R] are their rows, each with the row of the call that it
// is.
struct LogitView {
    View2<float> logits{};                    // [R, V]
    bool is_edited = false;                   // a copy, still to be made
    std::vector<std::size_t> rows{};          // [R]
    std::vector<kernels::SampleRow> draws{};  // [R], of those drawn from here
    const kernels::SampleRow* draws_there = nullptr;
    kernels::Choice* choices = nullptr;          // [R], the sampler's, where the ops work
    std::size_t num_reported = 0;                // only rows before it are reported from
    std::vector<kernels::SoftmaxRow> softmax{};  // [num_reported], and so the next
    std::vector<kernels::SoftmaxStats> stats{};
    kernels::SoftmaxRow* softmax_there = nullptr;
    kernels::SoftmaxStats* stats_there = nullptr;
    // They come row by row in each: the choices and targets that are ranked, those that are not,
    // and the ids asked for.
    std::vector<kernels::LogitPick> picks{};
    std::vector<float> picked{};             // their logits
    std::vector<std::int32_t> num_before{};  // for those that are ranked
    kernels::LogitPick* picks_there = nullptr;
    float* picked_there = nullptr;
    std::int32_t* num_before_there = nullptr;
    std::size_t ids_begin = 0;              // the first pick of an id asked for
    std::vector<std::size_t> top_starts{};  // [num_reported + 1], in the next two
    std::vector<TokenId> top_ids{};
    std::vector<float> top_logits{};
    struct Wide {
        std::size_t row = 0;
        std::vector<float> logits{};  // [V]
    };
    std::vector<Wide> wide{};  // whole rows, of those that want more than an op finds
};

}  // namespace pitstop::tp_worker
