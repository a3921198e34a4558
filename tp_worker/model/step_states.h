// The states that the rows of a step read and write, if the model's blocks keep a state per request
// (blocks/state_pool.h). A row must continue from the state after exactly its earlier tokens, or is
// refused: any other state would silently give wrong numbers.
//
// Bounded: by the number of places.
#pragma once

#include "base/result.h"
#include "messages/steps.h"
#include "tp_worker/blocks/step.h"
#include "tp_worker/model/draft_replay.h"

#include <cstdint>
#include <vector>

namespace pitstop::tp_worker {

class StepStates {
  public:
    // Places: first those of slots, then those of checkpoints.
    StepStates(std::int64_t num_slots, std::int64_t num_checkpoints)
        : num_slots_(num_slots), lens_(static_cast<std::size_t>(num_slots + num_checkpoints)) {}

    // Prepares the places of a plan's rows, and records which tokens each place will contain.
    // REQUIRES: invalid(plan) found nothing, and its ranges are checked; plans are run in this
    // order. Errors: kInvalidArgument, naming the row: another row has its slot, or the state to
    // continue from is not the one before its first token; more drafts than a step may have.
    Result<> prepare(const messages::StepPlan& plan);
    // Called when the last plan has sampled: the first num_right[i] drafts of its i-th row with
    // drafts are right. Returns the pass that applies those drafts to the states (Model::replay).
    // The pass has no tokens if no draft is right. Borrowed until the next plan.
    [[nodiscard]] StepBatch accept(std::span<const std::int64_t> num_right);
    // Adds rows of padding, up to `num_rows` in all: they have no place, and no state is saved
    // (kernels/gated_delta.h).
    void pad(std::int64_t num_rows);
    // The places for the last plan; borrowed until the next one.
    [[nodiscard]] StatePlaces places() const {
        return {
            .places = places_,
            .from_places = from_places_,
            .saved_places = saved_places_,
            .saved_ends = saved_ends_,
            .stored_ends = drafts_.rows().empty() ? std::span<const std::int32_t>{} : stored_ends_};
    }
    // The drafts of the last plan, by their index in the step.
    [[nodiscard]] std::span<const std::int32_t> drafted_rows() const {
        return drafts_.token_rows();
    }

  private:
    Result<> add_row(std::size_t index, const messages::PlanRow& row, std::int64_t begin);
    [[nodiscard]] std::int32_t place_of(messages::CheckpointId id) const;

    std::int64_t num_slots_;
    std::vector<std::int64_t> lens_;  // by place: the number of tokens that its state includes
    std::vector<std::int32_t> places_{};
    std::vector<std::int32_t> from_places_{};
    std::vector<std::int32_t> saved_places_{};
    std::vector<std::int32_t> saved_ends_{};
    std::vector<std::int32_t> stored_ends_{};
    DraftReplay drafts_{};
};

}  // namespace pitstop::tp_worker
