#include "scheduler_proc/steps_in_flight.h"

#include "base/check.h"

#include <fmt/format.h>

#include <utility>

namespace pitstop::scheduler {

void StepsInFlight::push(InFlightStep step) {
    CHECK(!is_full() && step.step == next_step_);
    next_step_ = next(next_step_);
    step.is_alone = steps_.empty();
    step.is_done.assign(static_cast<std::size_t>(tp_), false);
    steps_.push_back(std::move(step));
}

Result<bool> StepsInFlight::record(messages::StepResult result) {
    const std::int64_t rank = raw(result.rank);
    if (empty() || result.step < steps_.front().step || result.step > steps_.back().step)
        return false;
    if (rank < 0 || rank >= tp_) return false;
    InFlightStep& step =
        steps_[static_cast<std::size_t>(raw(result.step) - raw(steps_.front().step))];
    const auto at = static_cast<std::size_t>(rank);
    if (step.is_done[at]) return false;
    if (result.epoch != step.version.epoch) {
        return make_error(
            ErrorCode::kInternal,
            "rank {} ran step {} under epoch {}, planned was {}",
            rank,
            raw(result.step),
            raw(result.epoch),
            raw(step.version.epoch)
        );
    }
    if (rank == 0) {
        if (const auto problem = step.mismatch(result)) {
            return make_error(
                ErrorCode::kInternal, "rank 0's result of step {}: {}", raw(result.step), *problem
            );
        }
        step.numbers = std::move(result);
    }
    step.is_done[at] = true;
    return true;
}

std::optional<InFlightStep> StepsInFlight::take_done() {
    if (empty() || !steps_.front().is_complete()) return std::nullopt;
    InFlightStep step = std::move(steps_.front());
    steps_.pop_front();
    return step;
}

std::map<RequestKey, std::int64_t> StepsInFlight::num_sampled() const {
    std::map<RequestKey, std::int64_t> num;
    for (const InFlightStep& step : steps_) {
        for (const StepRow& row : step.rows)
            num[row.key] += static_cast<std::int64_t>(row.num_sampled());
    }
    return num;
}

std::string StepsInFlight::describe(TimePoint now) const {
    if (empty()) return "no step in flight";
    const InFlightStep& step = steps_.front();
    return fmt::format(
        "step {} has run for {:.3f} s without an answer from {}",
        raw(step.step),
        seconds(now - step.sent_at),
        step.who_is_missing(nodes_)
    );
}

std::optional<TimePoint> StepsInFlight::began_at() const {
    if (empty()) return std::nullopt;
    return steps_.front().sent_at;
}

std::optional<TimePoint> StepsInFlight::next_deadline() const {
    if (empty()) return std::nullopt;
    return steps_.front().sent_at + timeout_;
}

std::optional<std::string> StepsInFlight::audit(Epoch serving) const {
    if (steps_.size() > kMax) return "too many steps in flight";
    for (std::size_t i = 0; i < steps_.size(); ++i) {
        const InFlightStep& step = steps_[i];
        const auto num_after = static_cast<std::int64_t>(steps_.size() - i);
        if (raw(step.step) + num_after != raw(next_step_))
            return fmt::format("step {} is out of order", raw(step.step));
        if (step.version.epoch > serving)
            return fmt::format("step {} runs under a future version", raw(step.step));
    }
    return std::nullopt;
}

}  // namespace pitstop::scheduler
