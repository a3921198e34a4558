// The data of one call of the sampler (tp_worker/model/sampler.h): rows of logits, and their
// draws and reports.
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

// A row of the call, and the needs of its request.
struct SampledRow {
    const LogitRow* place = nullptr;
    // valid until the call is enqueued: the next step may set its slot up anew
    const RequestState* request = nullptr;
    bool is_sample = false;     // false: the row scores
    bool is_ranked = false;     // the rank of its id among all ids is wanted
    std::int64_t num_top = 0;   // wanted best ids, at most V
    std::size_t num_ids = 0;    // requested ids
    bool has_support = false;   // the ids that it is drawn among are reported
    bool is_raw = false;        // its logprobs are of the model's unchanged logits
    bool is_truncated = false;  // its logprobs are those of the tokens kept for the draw
    bool is_edited = false;     // drawn from logits after penalties and bias
    bool is_whole = true;       // its logits are needed in one place (rank_call.h)
    bool sums_parts = false;    // its softmax sums are merged from the ranks'
    kernels::SampleRow draw{};  // for a sample; its position counts from the call's first

    // Returns whether the row draws the last token of its request, whatever the draw is.
    [[nodiscard]] bool draws_last() const { return is_sample && !place->has_drafts; }
    // Returns whether the row's logprobs are those of the edited logits.
    [[nodiscard]] bool reports_edited() const { return is_edited && !is_raw; }
};

// Adjacent rows of logits, either the model's or the edited copies. Some rows are for draws, some
// for reports, some for both. Arrays marked [R] have an element per row of the view.
struct LogitView {
    View2<float> logits{};                    // [R, V]
    bool is_edited = false;                   // a copy that is still to be made
    std::vector<std::size_t> rows{};          // [R], as indices of the call's rows
    std::vector<kernels::SampleRow> draws{};  // [R], for rows drawn from this view
    const kernels::SampleRow* device_draws = nullptr;
    kernels::Choice* choices = nullptr;          // [R], of the sampler, in the ops' memory
    std::size_t num_reported = 0;                // only rows before this one have reports
    std::vector<kernels::SoftmaxRow> softmax{};  // [num_reported], as the next members
    std::vector<kernels::SoftmaxStats> stats{};
    kernels::SoftmaxRow* device_softmax = nullptr;
    kernels::SoftmaxStats* device_stats = nullptr;
    // In each array, row by row: the ranked choices and targets, then the unranked ones, then the
    // requested ids.
    std::vector<kernels::LogitPick> picks{};
    std::vector<float> picked{};             // logits of the picks
    std::vector<std::int32_t> num_before{};  // for the ranked picks
    kernels::LogitPick* device_picks = nullptr;
    float* device_picked = nullptr;
    std::int32_t* device_num_before = nullptr;
    std::size_t ids_begin = 0;              // the first pick of a requested id
    std::vector<std::size_t> top_starts{};  // [num_reported + 1], in the next two arrays
    std::vector<TokenId> top_ids{};
    std::vector<float> top_logits{};
    struct Wide {
        std::size_t row = 0;
        std::vector<float> logits{};  // [V]
    };
    std::vector<Wide> wide{};  // whole rows that want more top ids than an op finds
};

}  // namespace pitstop::tp_worker
