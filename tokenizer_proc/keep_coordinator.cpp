#include "tokenizer_proc/keep_coordinator.h"

#include <algorithm>
#include <utility>

namespace pitstop::tokenizer {

KeepCoordinator::KeepCoordinator(
    TimePoint now, std::string directory, int num_ranks, const ServedVersion& served
)
    : directory_(std::move(directory)),
      num_ranks_(static_cast<std::size_t>(num_ranks)),
      since_(now),
      version_(served),
      has_answered_(num_ranks_, false) {
    if (!served.path.starts_with(directory_ + "/")) return;
    status_.state = State::kKept;  // a restart loaded the version from the directory
    status_.path = served.path;
    status_.path_digest = served.digest;
}

void KeepCoordinator::enter(TimePoint now, State state) {
    status_.state = state;
    since_ = now;
}

messages::WorkerKeep KeepCoordinator::order(messages::KeepStep step) {
    step_ = step;
    has_answered_.assign(num_ranks_, false);
    return {
        .call = call_,
        .step = step,
        .epoch = version_.epoch,
        .label = version_.label,
        .digest = version_.digest};
}

messages::WorkerKeep KeepCoordinator::committed(TimePoint now, const ServedVersion& version) {
    if (status_.state == State::kWriting) ++status_.superseded_total;
    version_ = version;
    call_ = next(call_);
    status_.message.clear();
    enter(now, State::kWriting);
    return order(messages::KeepStep::kBegin);
}

std::optional<messages::WorkerKeep> KeepCoordinator::part(
    TimePoint now, const messages::WorkerKept& part
) {
    const auto rank = static_cast<std::size_t>(raw(part.rank));
    if (status_.state != State::kWriting || part.call != call_ || part.step != step_ ||
        rank >= num_ranks_ || has_answered_[rank])
        return std::nullopt;
    if (!part.verdict.is_done()) {
        ++status_.failed_total;
        status_.message = part.verdict.message;
        enter(now, State::kFailed);
        return order(messages::KeepStep::kDrop);
    }
    has_answered_[rank] = true;
    if (step_ == messages::KeepStep::kWrite &&
        std::ranges::find(has_answered_, false) != has_answered_.end())
        return std::nullopt;
    if (part.path.empty())
        return order(
            step_ == messages::KeepStep::kBegin ? messages::KeepStep::kWrite
                                                : messages::KeepStep::kSeal
        );
    ++status_.kept_total;
    status_.path = part.path;
    status_.path_digest = version_.digest;
    enter(now, State::kKept);
    return std::nullopt;
}

messages::KeepStatus KeepCoordinator::status(TimePoint now) const {
    messages::KeepStatus status = status_;
    status.epoch = version_.epoch;
    status.digest = version_.digest;
    status.age_s = seconds(now - since_);
    return status;
}

}  // namespace pitstop::tokenizer
