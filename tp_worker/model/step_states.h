// Which states the rows of a step read and write, of a model whose blocks keep one per request
// (blocks/state_pool.h). A row continues from the state after exactly the tokens before it, or is
// refused: a state that lacks some, or has others, would compute wrong numbers in silence.
//
// Bounded: by the number of places.
#pragma once

#include "base/result.h"
#include "messages/steps.h"
#include "tp_worker/blocks/step.h"

#include <cstdint>
#include <vector>

namespace pitstop::tp_worker {

class StepStates {
  public:
    // Places are those of slots, then those of checkpoints.
    StepStates(std::int64_t num_slots, std::int64_t num_checkpoints)
        : num_slots_(num_slots), lens_(static_cast<std::size_t>(num_slots + num_checkpoints)) {}

    // Takes a plan's rows, and notes which tokens their places will have. REQUIRES: invalid(plan)
    // found nothing, and its ranges are checked; plans are run in this order.
    // Errors: kInvalidArgument, naming the row: another has its slot, or the state that it is to
    // continue is not that before its first token.
    Result<> prepare(const messages::StepPlan& plan);
    // Of the last plan; borrowed until the next.
    [[nodiscard]] StatePlaces places() const {
        return {
            .places = places_,
            .from_places = from_places_,
            .saved_places = saved_places_,
            .saved_ends = saved_ends_};
    }

  private:
    [[nodiscard]] std::int32_t place_of(messages::CheckpointId id) const;

    std::int64_t num_slots_;
    std::vector<std::int64_t> lens_;  // by place: the tokens whose state it has
    std::vector<std::int32_t> places_{};
    std::vector<std::int32_t> from_places_{};
    std::vector<std::int32_t> saved_places_{};
    std::vector<std::int32_t> saved_ends_{};
};

}  // namespace pitstop::tp_worker
