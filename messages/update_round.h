// Tracks an update at one level: its phase, and the participants that have answered the current
// order. Every participant gets each order. When all have completed it, the update enters the next
// phase (update_phase.h). After a failure or a timeout, only a drop may follow.
//
// The owner stores the contents of the answers.
//
// Pure: no clock, no socket. Bounded: a flag per participant.
#pragma once

#include "messages/update_phase.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pitstop::messages {

class UpdateRound {
  public:
    explicit UpdateRound(std::size_t num_asked) : has_answered_(num_asked, false) {}

    // An update that has failed stays in the phase where it failed, until it is dropped.
    [[nodiscard]] UpdatePhase phase() const { return phase_; }
    [[nodiscard]] bool has_failed() const { return has_failed_; }

    [[nodiscard]] bool may(UpdateOrder order) const {
        return has_failed_ ? order == UpdateOrder::kDrop : transition(phase_, order).has_value();
    }
    // REQUIRES: may(order).
    void ask(UpdateOrder order);

    // Returns the last order. REQUIRES: one was given.
    [[nodiscard]] UpdateOrder order() const { return under_way_.order; }
    // Returns whether the order is in progress and no participant has failed.
    [[nodiscard]] bool is_asking() const {
        return phase_ != UpdatePhase::kIdle && phase_ == under_way_.asking && !has_failed_;
    }
    // Returns whether `who` got this order and has not answered it.
    [[nodiscard]] bool awaits(UpdateOrder order, std::int64_t who) const;

    enum class Progress {
        // some have not answered; or the round failed before, and this answer changes nothing
        kGoesOn,
        kDone,    // all have completed the order
        kFailed,  // this is the first failure
    };
    enum class Answer { kDone, kFailed };
    // Records an answer. A drop cannot fail: a participant answers the drop when nothing of the
    // update is left. REQUIRES: `who` is awaited.
    Progress record_answer(std::size_t who, Answer answer);

    // Ends an order that needs no answers. REQUIRES: is_asking().
    void finish();
    // Stops waiting for participants that have not answered.
    void fail() { has_failed_ = true; }

    [[nodiscard]] bool has_answered(std::size_t who) const { return has_answered_[who]; }
    // Returns the participants that have not answered yet, in order.
    [[nodiscard]] std::vector<std::size_t> silent() const;

  private:
    UpdatePhase phase_ = UpdatePhase::kIdle;
    UpdateTransition under_way_{};
    bool has_failed_ = false;
    std::vector<bool> has_answered_;  // by participant; for the latest order
};

}  // namespace pitstop::messages
