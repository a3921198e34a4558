// The state of a pause of generation, and the calls that wait until all requests have stopped
// (design section 4, the table of pause modes).
//
//   running -> pausing (steps in flight end; with wait: requests finish) -> paused -> running
//
// The caller decides what happens to running requests, and whether they can continue.
//
// Thread:  the loop thread only.
// Bounded: kPendingCallsMax calls that wait.
#pragma once

#include "scheduler_proc/turn.h"

#include <optional>
#include <string>
#include <vector>

namespace pitstop::scheduler {

class Pause {
  public:
    explicit Pause(ReplicaId replica) : replica_(replica) {}

    [[nodiscard]] bool is_paused() const { return state_.has_value(); }
    // REQUIRES: is_paused().
    [[nodiscard]] messages::PauseMode mode() const { return state_->mode; }
    // The number of pauses that max_pause_s has ended.
    [[nodiscard]] std::int64_t num_expired() const { return num_expired_; }
    // Returns whether no step is in flight and no request is left to finish.
    [[nodiscard]] bool is_standing() const { return state_ && state_->is_standing; }
    // Returns whether requests that have run continue until they end, as in mode wait.
    [[nodiscard]] bool runs_out() const {
        return state_ && state_->mode == messages::PauseMode::kWait && !state_->is_standing;
    }

    // Begins a pause for a call, which is answered when all requests have stopped. Returns the part
    // of the answer in which the caller records what it does to requests, or null if the call was
    // refused because too many calls wait.
    messages::PausePart* begin(
        const messages::PauseGeneration& call, TimePoint now, TurnOutput& out
    );
    // Ends the pause unless `why_not` says why it must stay. Answers the call. `later` tells the
    // caller why nothing runs yet.
    void go_on(
        const messages::ContinueGeneration& call,
        TimePoint now,
        const std::optional<Error>& why_not,
        const std::optional<Error>& later,
        TurnOutput& out
    );

    // The runner's state, for the decisions and answers below.
    struct Load {
        bool is_still = false;    // no step is in flight
        bool is_run_out = false;  // no request that has run is still open
        std::int64_t num_running = 0;
        std::int64_t num_waiting = 0;
    };
    // Returns whether all requests have stopped since the last call; if so, answers waiting calls.
    bool advance(const Load& load, TimePoint now, TurnOutput& out);

    // Answers the calls whose deadline has passed. `step` names the step they waited for.
    void end_late_calls(
        TimePoint now, const std::string& step, std::int64_t num_running, TurnOutput& out
    );
    // Ends a pause whose max_pause_s has passed, unless `why_not` says why it must stay. A replica
    // that cannot continue yet stays paused, so that requests wait and are not refused.
    void end_if_overdue(TimePoint now, const std::optional<Error>& why_not, TurnOutput& out);
    [[nodiscard]] bool is_overdue(TimePoint now) const {
        return state_ && state_->until && now >= *state_->until;
    }
    // Returns the next deadline of the pause or of a call. `can_go_on`: the pause may end now. If
    // it may not, an overdue pause has no deadline, because only a message can remove the obstacle.
    [[nodiscard]] std::optional<TimePoint> next_deadline(TimePoint now, bool can_go_on) const;

    // Fills in the pause's fields of the status.
    void report_to(messages::ReplicaStatus& status, TimePoint now) const;

  private:
    struct State {
        messages::PauseMode mode = messages::PauseMode::kAbort;
        TimePoint since{};
        std::optional<TimePoint> until{};  // when the pause ends by itself
        bool is_standing = false;
    };
    struct Call {
        TimePoint started{};
        TimePoint deadline{};
        messages::PausePart part{};
    };
    void end(TimePoint now, const std::string& why, TurnOutput& out);

    ReplicaId replica_;
    std::optional<State> state_{};
    std::vector<Call> calls_{};
    std::string expiry_{};  // ReplicaStatus::pause_expiry
    std::int64_t num_pauses_ = 0;
    std::int64_t num_expired_ = 0;
    Duration paused_{};  // sum of the ended pauses
};

}  // namespace pitstop::scheduler
