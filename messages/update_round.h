// Follows an update at one level: its phase, and who has answered the order under way. All are
// asked at once; when all have done it the next phase is there (update_phase.h); when one fails, or
// time is up, nothing but a drop may follow.
//
// What they answered is the owner's to keep.
//
// It is pure, without clock or socket. Bounded: a flag for each who is asked.
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

    // Returns the order given last. REQUIRES: there was one.
    [[nodiscard]] UpdateOrder order() const { return under_way_.order; }
    // It is under way still, and nobody has failed.
    [[nodiscard]] bool is_asking() const {
        return phase_ != UpdatePhase::kIdle && phase_ == under_way_.asking && !has_failed_;
    }
    // Returns whether that one has been asked this and has not answered.
    [[nodiscard]] bool awaits(UpdateOrder order, std::int64_t who) const;

    enum class Progress {
        kGoesOn,  // others are to answer; or it has failed before, and this is for the report
        kDone,    // all have done it
        kFailed,  // this is the first that has not
    };
    enum class Answer { kDone, kFailed };
    // A drop cannot fail: whoever answers has nothing left of the update. REQUIRES: who is awaited.
    Progress record_answer(std::size_t who, Answer answer);

    // Ends an order that needs nobody's answer. REQUIRES: is_asking().
    void finish();
    // Those who have not answered are waited for no longer.
    void fail() { has_failed_ = true; }

    [[nodiscard]] bool has_answered(std::size_t who) const { return has_answered_[who]; }
    // Returns who is to answer yet, in order.
    [[nodiscard]] std::vector<std::size_t> silent() const;

  private:
    UpdatePhase phase_ = UpdatePhase::kIdle;
    UpdateTransition under_way_{};
    bool has_failed_ = false;
    std::vector<bool> has_answered_;  // the order under way, or the last one
};

}  // namespace pitstop::messages
