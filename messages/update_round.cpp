#include "messages/update_round.h"

#include "base/check.h"

namespace pitstop::messages {

void UpdateRound::ask(UpdateOrder order) {
    CHECK(may(order));
    // A failed order stays recorded as the last one; only a drop may follow it.
    under_way_ = transition(phase_, order)
                     .value_or(UpdateTransition{
                         phase_, order, UpdatePhase::kDropping, UpdatePhase::kDropped});
    phase_ = under_way_.asking;
    has_failed_ = false;
    has_answered_.assign(has_answered_.size(), false);
}

bool UpdateRound::awaits(UpdateOrder order, std::int64_t who) const {
    return phase_ != UpdatePhase::kIdle && phase_ == under_way_.asking &&
           under_way_.order == order && who >= 0 && who < std::ssize(has_answered_) &&
           !has_answered_[static_cast<std::size_t>(who)];
}

UpdateRound::Progress UpdateRound::record_answer(std::size_t who, Answer answer) {
    CHECK(awaits(under_way_.order, static_cast<std::int64_t>(who)));
    has_answered_[who] = true;
    if (has_failed_) return Progress::kGoesOn;
    if (answer == Answer::kFailed && phase_ != UpdatePhase::kDropping) {
        has_failed_ = true;
        return Progress::kFailed;
    }
    if (!silent().empty()) return Progress::kGoesOn;
    finish();
    return Progress::kDone;
}

void UpdateRound::finish() {
    CHECK(is_asking());
    phase_ = under_way_.done;
}

std::vector<std::size_t> UpdateRound::silent() const {
    std::vector<std::size_t> who;
    for (std::size_t i = 0; i < has_answered_.size(); ++i) {
        if (!has_answered_[i]) who.push_back(i);
    }
    return who;
}

}  // namespace pitstop::messages
