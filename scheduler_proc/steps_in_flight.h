// The steps that were sent to the workers and that some worker has not answered, in the order sent.
// Steps end in this order.
//
// Thread:  the loop thread only.
// Bounded: kMax steps: the next one is planned while one runs.
#pragma once

#include "base/result.h"
#include "scheduler_proc/in_flight_step.h"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

namespace pitstop::scheduler {

class StepsInFlight {
  public:
    static constexpr std::size_t kMax = 2;

    // `timeout`: a step that takes longer is assumed never to end. `nodes`: the number of machines
    // that the ranks are on.
    StepsInFlight(int tp, Duration timeout, int nodes = 1)
        : tp_(tp), timeout_(timeout), nodes_(nodes) {}

    [[nodiscard]] StepId next_step() const { return next_step_; }
    [[nodiscard]] bool empty() const { return steps_.empty(); }
    [[nodiscard]] bool is_full() const { return steps_.size() >= kMax; }
    [[nodiscard]] const std::deque<InFlightStep>& all() const { return steps_; }

    // REQUIRES: !is_full(); step.step == next_step().
    void push(InFlightStep step);
    // Returns true if the rank's result belongs to a step in flight and is its first. Errors:
    // kInternal if the result does not match the plan.
    [[nodiscard]] Result<bool> record(messages::StepResult result);
    // Removes and returns the first step if all ranks have answered it.
    [[nodiscard]] std::optional<InFlightStep> take_done();

    // The number of tokens being sampled, by request.
    [[nodiscard]] std::map<RequestKey, std::int64_t> num_sampled() const;
    // Describes the oldest step: "step 7 has run for 0.100 s without an answer from rank 1".
    [[nodiscard]] std::string describe(TimePoint now) const;
    // Returns when the oldest step began.
    [[nodiscard]] std::optional<TimePoint> began_at() const;
    // Returns when the oldest step becomes late.
    [[nodiscard]] std::optional<TimePoint> next_deadline() const;
    [[nodiscard]] bool is_late(TimePoint now) const { return !empty() && now >= *next_deadline(); }

    // Checks the steps' versions; `serving` is the newest. Returns the problem, or nothing.
    [[nodiscard]] std::optional<std::string> audit(Epoch serving) const;

  private:
    int tp_;
    Duration timeout_;
    int nodes_;
    StepId next_step_{1};
    std::deque<InFlightStep> steps_{};
};

}  // namespace pitstop::scheduler
