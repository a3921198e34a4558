// Knows the calls to flush the prefix cache that wait: all for the steps in flight, as pages of
// requests that have ended are held until then, and some until nothing runs any more.
//
// What runs, and what was flushed, others say.
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

    // Takes a call, or refuses it: too many wait, or it does not want to wait for what holds pages,
    // which `in_use` says.
    void begin(
        const messages::FlushCache& call,
        TimePoint now,
        const std::optional<Error>& in_use,
        TurnOutput& out
    );
    [[nodiscard]] bool empty() const { return calls_.empty(); }
    // Returns whether nothing may be planned: a call was taken when nothing ran, and nothing new
    // starts until the steps in flight are done.
    [[nodiscard]] bool holds_plans() const;

    // Answers all: the cache was flushed.
    void settle(std::int64_t pages_freed, TurnOutput& out);
    // Answers the calls that are late. `what` says what they waited for.
    void end_late_calls(TimePoint now, const std::string& what, TurnOutput& out);
    [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  private:
    struct Call {
        TimePoint deadline{};
        bool waits_idle = false;  // for what runs, too
        messages::FlushPart part{};
    };

    ReplicaId replica_;
    std::vector<Call> calls_{};
};

}  // namespace pitstop::scheduler
