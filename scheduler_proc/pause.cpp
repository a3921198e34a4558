#include "scheduler_proc/pause.h"

#include <chrono>
#include <utility>

namespace pitstop::scheduler {
namespace {

std::int64_t microseconds(Duration duration) {
    return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

}  // namespace

messages::PausePart* Pause::begin(
    const messages::PauseGeneration& call, TimePoint now, TurnOutput& out
) {
    messages::PausePart part{.call = call.call, .replica = replica_, .was_paused = is_paused()};
    if (calls_.size() >= kPendingCallsMax) {
        part.verdict = make_error(
            ErrorCode::kResourceExhausted,
            "{} pauses are waiting, the most allowed; wait for an answer",
            calls_.size()
        );
        out.tokenizer.emplace_back(std::move(part));
        return nullptr;
    }
    if (part.was_paused) part.verdict.message = "already paused";

    // The latest pause sets the duration. Requests that have stopped stay stopped: a pause with
    // mode wait does not let frozen requests run again.
    if (!state_) {
        state_ = State{.mode = call.mode, .since = now};
        ++num_pauses_;
    } else if (call.mode != messages::PauseMode::kWait) {
        for (Call& other : calls_) {
            if (runs_out())
                other.part.verdict.message = "a later pause did not wait for the requests";
        }
        state_->mode = call.mode;
        state_->is_standing = false;
    }
    state_->until.reset();
    expiry_.clear();
    if (call.max_pause_s > 0) state_->until = now + duration_of(call.max_pause_s);
    calls_.push_back({
        .started = now,
        .deadline = deadline_of(now, call.timeout_ms),
        .part = std::move(part),
    });
    return &calls_.back().part;
}

void Pause::go_on(
    const messages::ContinueGeneration& call,
    TimePoint now,
    const std::optional<Error>& why_not,
    const std::optional<Error>& later,
    TurnOutput& out
) {
    messages::ContinuePart part{.call = call.call, .replica = replica_, .was_paused = is_paused()};
    if (why_not) {
        part.verdict = *why_not;
    } else if (!state_) {
        part.verdict.message = "not paused";
    } else {
        part.paused_s = seconds(now - state_->since);
        if (later) part.verdict.message = later->message;
        end(now, "a continue ended the pause before all requests had stopped", out);
    }
    out.tokenizer.emplace_back(std::move(part));
}

bool Pause::advance(const Load& load, TimePoint now, TurnOutput& out) {
    if (!state_) return false;
    const bool comes_to_stand =
        !state_->is_standing && load.is_still && !(runs_out() && !load.is_run_out);
    if (comes_to_stand) state_->is_standing = true;
    if (!state_->is_standing) return false;
    for (Call& call : calls_) {
        call.part.num_frozen = load.num_running;
        call.part.num_waiting = load.num_waiting;
        call.part.elapsed_us = microseconds(now - call.started);
        out.tokenizer.emplace_back(std::move(call.part));
    }
    calls_.clear();
    return comes_to_stand;
}

void Pause::end_late_calls(
    TimePoint now, const std::string& step, std::int64_t num_running, TurnOutput& out
) {
    std::erase_if(calls_, [&](Call& call) {
        if (now < call.deadline) return false;
        call.part.verdict = make_error(
            ErrorCode::kDeadlineExceeded,
            "phase pause: {} of replica {}; {} requests still run; the replica stays paused",
            step,
            raw(replica_),
            num_running
        );
        out.tokenizer.emplace_back(std::move(call.part));
        return true;
    });
}

void Pause::end_if_overdue(TimePoint now, const std::optional<Error>& why_not, TurnOutput& out) {
    if (!is_overdue(now)) return;
    if (why_not) {
        expiry_ = fmt::format("stays paused: {}", why_not->message);
        return;
    }
    expiry_ = fmt::format("continued by itself after {:.3f} s", seconds(now - state_->since));
    ++num_expired_;
    end(now, "max_pause_s passed before all requests had stopped", out);
}

// Lets requests run again. Calls that still wait are told why the pause ended before all requests
// had stopped.
void Pause::end(TimePoint now, const std::string& why, TurnOutput& out) {
    paused_ += now - state_->since;
    state_.reset();
    for (Call& call : calls_) {
        call.part.verdict = Error{ErrorCode::kAborted, why};
        out.tokenizer.emplace_back(std::move(call.part));
    }
    calls_.clear();
}

std::optional<TimePoint> Pause::next_deadline(TimePoint now, bool can_go_on) const {
    std::optional<TimePoint> first;
    if (state_ && state_->until && (now < *state_->until || can_go_on)) first = state_->until;
    for (const Call& call : calls_) first = earlier(first, call.deadline);
    return first;
}

void Pause::report_to(messages::ReplicaStatus& status, TimePoint now) const {
    status.pauses_total = num_pauses_;
    status.pause_expiry = expiry_;
    if (state_) {
        status.pause_mode = name_of(state_->mode);
        status.paused_s = seconds(now - state_->since);
    }
    status.paused_s_total = seconds(paused_) + status.paused_s;
}

}  // namespace pitstop::scheduler
