// The waiting calls to flush the prefix cache. All calls wait for the steps in flight, whose pages
// may belong to requests that have ended. Some calls also wait until no request runs.
//
// The caller reports the running requests and the number of flushed pages.
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

    // Accepts a call, or refuses it: too many calls wait, or requests hold pages (`in_use` says
    // which) and the call does not want to wait for them. Returns whether the call was accepted.
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
    // Answers the calls whose deadline has passed. `what` names the obstacle that they waited for.
    void end_late_calls(TimePoint now, const std::string& what, TurnOutput& out);
    [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  private:
    struct Call {
        TimePoint deadline{};
        bool waits_idle = false;  // for running requests, too
        messages::FlushPart part{};
    };

    ReplicaId replica_;
    std::vector<Call> calls_{};
};

}  // namespace pitstop::scheduler
