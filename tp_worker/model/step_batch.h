// Turns a plan of pages and slots into the ops' inputs: a position and a place in the KV for each
// token, and the list of wanted logits. Everything in a plan is checked here against this worker's
// own bounds; after that, ranges are trusted.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "messages/steps.h"
#include "tp_worker/model/grammars.h"
#include "tp_worker/model/model.h"
#include "tp_worker/model/request_state.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

// One row of logits, and the place of its numbers in the result.
struct LogitRow {
    enum class Kind : std::uint8_t { kSample, kScore };
    Kind kind = Kind::kSample;
    std::int32_t token_row = 0;  // the token whose hidden state gives the logits
    SlotId slot{};
    std::int64_t output_index = 0;  // kSample
    TokenId target{};               // kScore: the next token
    // kSample: the draft after the token, if there is one. The next row samples after that draft,
    // and counts only if this row draws the draft.
    std::optional<TokenId> draft{};
    // kSample: the plan's row has drafts, so only the host learns which of its draws is the
    // request's last.
    bool has_drafts = false;
    // kSample: the request's state if all drafts before are right; null: its current state.
    const RequestState* ahead = nullptr;
    // The first entry in the arrays of StepResult (kSample) or StepScores (kScore).
    std::size_t entry = 0;
    std::size_t top_begin = 0;
    std::size_t ids_begin = 0;
};

// The place of a row's numbers in a result that was sized for its step.
struct RowOutputs {
    float* logprob = nullptr;
    std::int32_t* rank = nullptr;
    TokenId* top_ids = nullptr;
    float* top_logprobs = nullptr;
    float* ids_logprobs = nullptr;
};
[[nodiscard]] RowOutputs outputs_of(const LogitRow& row, messages::StepResult* result);
// Writes the token that a row drew; a negative id is none (kernels/draws.h).
// REQUIRES: the row samples; the rows before it were reported.
void report_draw(const LogitRow& row, TokenId id, messages::StepResult* result);

// The requests by slot; empty if none was set up yet.
using RequestSlots = std::vector<std::optional<RequestState>>;

// Returns whether some row of the plan has drafts.
[[nodiscard]] bool has_drafts(const messages::StepPlan& plan);
// Records that a step with these rows was enqueued.
void note_draws(std::span<const LogitRow> rows, RequestSlots* slots);

struct StepLimits {
    std::int64_t tokens_max = 0;
    std::int64_t num_positions = 0;
    std::int64_t num_pages = 0;
    std::int64_t page_size = 0;
    std::int64_t vocab_len = 0;
    // The largest steps that are padded (step_padding.h). 0: no padding.
    std::int64_t padded_rows_max = 0;    // rows of a step of decodes, or rows of logits
    std::int64_t padded_tokens_max = 0;  // tokens of a step with prompts
    // A request's last draw is on the device (Sampler::sampled()): rows that use it name its slot
    // (kernels/embedding.h).
    bool has_drawn_on_device = false;
    // Of a model with experts: the shape of a row of routes, and the layers without experts.
    std::optional<messages::RouteShape> routes{};
    std::vector<std::int64_t> dense_layers{};
    std::int64_t num_checkpoints = 0;  // of a model with recurrent state
    std::int64_t drafted_max = 0;      // drafts of a row
    bool has_states = false;           // the model's blocks keep a state per request
    std::string no_supports{};         // why draws have no supports here; empty: supports exist
};

// Applies the plan's setups. `grammars`: null on a rank that draws no edited rows.
// kInvalidArgument names the slot.
Result<> set_up_requests(
    const messages::StepPlan& plan,
    std::int64_t vocab_len,
    RequestSlots* slots,
    Grammars* grammars = nullptr
);

class PlannedStep {
  public:
    // REQUIRES: invalid(plan) found nothing; its setups are applied.
    // Errors: kInvalidArgument, naming the row and what is out of range, or that another row
    // samples for the same slot.
    Result<> prepare(
        const messages::StepPlan& plan, const RequestSlots& slots, const StepLimits& limits
    );

    // Borrows from this and from the plan.
    [[nodiscard]] StepBatch batch(const messages::StepPlan& plan) const;
    // Returns whether the batch is padded: then its logits are computed with it. All logits except
    // the padding's are wanted; row i of them is logit_rows()[i].
    [[nodiscard]] bool is_padded() const { return num_padded_ > 0 || !token_rows_.empty(); }
    // Returns the batch's rows, with those of padding.
    [[nodiscard]] std::int64_t num_rows() const {
        return num_padded_ > 0 ? num_padded_ : std::ssize(kv_lens_);
    }
    [[nodiscard]] std::span<const LogitRow> logit_rows() const { return logit_rows_; }
    [[nodiscard]] bool has_drafts() const {
        return std::ranges::any_of(logit_rows_, &LogitRow::has_drafts);
    }
    // The tokens whose routes are reported, by their index in the step, in the plan's order.
    [[nodiscard]] std::span<const std::int32_t> routed_rows() const { return routed_rows_; }
    // Returns for each row of logits whether it counts. A row does not count if it samples after a
    // draft that was not drawn. `ids` as below.
    [[nodiscard]] std::vector<bool> counting_rows(std::span<const TokenId> ids) const;
    // Returns the number of right drafts of each row of the plan that has drafts, in order. `ids`
    // as below.
    [[nodiscard]] std::vector<std::int64_t> num_right(std::span<const TokenId> ids) const;
    // Finds the rows of the plan with a token that is not finite, and the first such token of each.
    // For tokens with logits, `ids` show this: one id per row of logit_rows(), as note_draws writes
    // it (kernels/draws.h). For other tokens, `marks` show it (StepBatch). So a row's result does
    // not depend on other rows of the step, or on how its prompt was cut. Tokens after a wrong
    // draft do not count.
    [[nodiscard]] std::vector<messages::NotFiniteRow> not_finite_rows(
        std::span<const TokenId> ids, std::span<const std::uint8_t> marks
    ) const;
    // Returns a result with its arrays sized for this step.
    [[nodiscard]] messages::StepResult empty_result(const messages::StepPlan& plan, Rank rank)
        const;

  private:
    Result<> add_row(
        const messages::StepPlan& plan,
        std::size_t index,
        const RequestSlots& slots,
        const StepLimits& limits
    );
    Result<> check_brought(const messages::StepPlan& plan, const StepLimits& limits);
    [[nodiscard]] bool only_samples() const;
    [[nodiscard]] bool is_of_decodes() const;
    [[nodiscard]] bool is_small(const StepLimits& limits) const;
    [[nodiscard]] std::int64_t padded_small_rows() const;
    void pad_prompts(const StepLimits& limits);
    void add_routes(const messages::PlanRow& row);
    void add_logits(
        const messages::PlanRow& row, const RequestState& request, const messages::StepPlan& plan
    );
    [[nodiscard]] LogitRow sample_of(
        const messages::PlanRow& row,
        const RequestState& request,
        const messages::StepPlan& plan,
        std::int64_t index
    );

    // How much of a result's arrays has been assigned.
    struct Sizes {
        std::size_t entries = 0;
        std::size_t top = 0;
        std::size_t ids = 0;
    };

    std::vector<TokenId> tokens_{};
    std::vector<std::int32_t> positions_{};
    std::vector<std::int64_t> kv_slots_{};
    std::vector<std::int32_t> q_starts_{};
    std::vector<std::int32_t> kv_lens_{};
    std::vector<std::int32_t> page_starts_{};
    std::vector<SlotId> slots_{};  // by row
    std::int64_t num_padded_ = 0;  // rows of decodes with padding; 0: another kind of step
    std::vector<std::int32_t> token_rows_{};  // for a small step with prompts (StepBatch)
    std::vector<std::int32_t> routed_rows_{};
    std::vector<std::int32_t> brought_rows_{};
    std::int64_t brought_row_bytes_ = 0;
    std::int32_t kv_len_max_ = 0;
    std::int32_t q_len_max_ = 0;
    std::vector<LogitRow> logit_rows_{};
    std::deque<RequestState> ahead_{};  // of requests whose draws depend on the drafts before
    std::vector<bool> samples_{};       // by slot: whether a row of the plan samples for the slot
    Sizes sampled_{};
    Sizes scored_{};
    std::size_t token_at_ = 0;
    std::size_t page_at_ = 0;
    std::size_t target_at_ = 0;
};

}  // namespace pitstop::tp_worker
