// The waiting calls to flush the prefix cache. All wait for the steps in flight, which hold the
// pages of requests that have ended; some also wait until no request runs.
//
// The caller reports which requests run and which pages were flushed.
//
// Thread:  the loop thread only.
// Bounded: kPendingCallsMax calls that wait.
#pragma once

#include "scheduler_proc/turn.h"

#include <optional>
#include <string>
#include <vector>

namespace pitstop::scheduler {

class CacheFlushes {
  public:
    explicit CacheFlushes(ReplicaId replica) : replica_(replica) {}

    // Accepts a call, or refuses it: too many wait, or the call does not want to wait for the
    // requests that hold pages, which `in_use` names. Returns whether it was accepted.
    bool begin(
        const messages::FlushCache& call,
        TimePoint now,
        const std::optional<Error>& in_use,
        TurnOutput& out
    );
    [[nodiscard]] bool empty() const { return calls_.empty(); }
    // Returns whether planning must wait: a call was accepted while no request ran, and waits for
    // the steps in flight.
    [[nodiscard]] bool holds_plans() const;

    // The cache was flushed: answers all calls.
    void advance(std::int64_t pages_freed, TurnOutput& out);
    // Answers the calls whose deadline has passed. `what` describes what they waited for.
    void end_late_calls(TimePoint now, const std::string& what, TurnOutput& out);
    [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  private:
    struct Call {
        TimePoint deadline{};
        bool waits_idle = false;  // also for running requests
        messages::FlushPart part{};
    };

    ReplicaId replica_;
    std::vector<Call> calls_{};
};

}  // namespace pitstop::scheduler
