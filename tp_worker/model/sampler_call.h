// One call of the sampler (sampler.h), from its rows to a result: everything that lives until its
// numbers are ready. Owns the host's arrays, which the transfers fill.
#pragma once

#include "kernels/draws.h"
#include "tp_worker/model/logit_view.h"
#include "tp_worker/model/rank_call.h"
#include "tp_worker/model/sampler.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

class Sampler::Call {
  public:
    // Places its arrays.
    Call(
        Sampler& sampler,
        const RowLogits& logits,
        std::span<const LogitRow> rows,
        const RequestSlots& slots
    );
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    Result<> enqueue();  // errors: the communicator's
    // REQUIRES: the turn in which it was enqueued is finished (transfers.h).
    void finish(messages::StepResult* result);
    // Returns the drawn ids, by row, once the call is finished.
    [[nodiscard]] std::span<const TokenId> ids() const { return ids_; }

  private:
    void set_up_views(const RowLogits& logits);
    void set_up(LogitView& view);
    void set_picks(LogitView& view);
    void place();
    void place_picks(LogitView& view);
    [[nodiscard]] std::vector<kernels::DrawnRow> drawn_rows() const;
    [[nodiscard]] bool draw_counts() const;
    void start_draws(const LogitView& view);
    void edit(std::span<const std::size_t> rows, View2<float> edited);
    void start_reports(LogitView& view);
    void start_tops(LogitView& view);
    void start_wide(LogitView& view, std::size_t k);
    void finish_reports(LogitView& view, messages::StepResult* result);

    [[nodiscard]] std::size_t end_of_run(const LogitView& view, std::size_t begin) const;
    [[nodiscard]] bool is_finite(std::size_t i) const {
        return ids_[i] != kernels::kNotFiniteDraw && ids_[i] != kernels::kScoreNotFinite;
    }
    [[nodiscard]] bool is_drawn(const LogitView& view, std::size_t k) const {
        const SampledRow& row = rows_[view.rows[k]];
        return row.is_sample && row.is_whole && row.is_edited == view.is_edited;
    }
    // Returns whether the row's numbers are from this view; a row with non-finite logits has none.
    [[nodiscard]] bool is_reported(const LogitView& view, std::size_t k) const {
        const SampledRow& row = rows_[view.rows[k]];
        return row.is_whole && row.reports_edited() == view.is_edited;
    }
    [[nodiscard]] bool sums_view(const LogitView& view) const;
    [[nodiscard]] std::size_t top_of(const LogitView& view, std::size_t k) const {
        return is_reported(view, k) ? static_cast<std::size_t>(rows_[view.rows[k]].num_top) : 0;
    }

    Sampler& sampler_;
    Transfers& transfers_;
    // Positions are relative to this one: a request that advances by a token per call keeps the
    // same relative position.
    std::uint32_t first_position_;
    std::vector<SampledRow> rows_{};
    std::vector<TokenId> ids_{};                     // by row, as note_draws writes them
    std::vector<float> kept_mins_{};                 // by row, on rank 0
    std::vector<messages::DrawSupport> supports_{};  // by row, on rank 0; empty: none is wanted
    std::vector<kernels::DrawnRow> drawn_{};         // by row
    const kernels::DrawnRow* device_drawn_ = nullptr;
    TokenId* device_ids_ = nullptr;
    float* device_kept_mins_ = nullptr;
    // device memory: changes of the standing arrays; null: none
    const std::int32_t* device_changes_ = nullptr;
    std::optional<RankCall> ranks_{};  // empty with a single rank
    // On rank 0: the rows of logits that are whole, and with several ranks all rows between them.
    LogitView model_{};
    LogitView edited_{};  // rows with edits; those whose logprobs are of edited logits come first
};

}  // namespace pitstop::tp_worker
