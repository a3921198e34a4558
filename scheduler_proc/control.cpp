// Pause, continue, flush, relabel (design section 4, the table of pause states).
#include "scheduler_proc/scheduler.h"

#include <algorithm>
#include <chrono>

namespace pitstop::scheduler {
namespace {

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// A time that long is for ever, and adding it to a TimePoint cannot overflow.
constexpr std::chrono::hours kForEver{24 * 365 * 10};

Duration from_seconds(double number) {
    const double most = std::chrono::duration<double>(kForEver).count();
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::min(number, most)
    ));
}

std::int64_t microseconds(Duration duration) {
    return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

}  // namespace

void Scheduler::pause(const PauseGeneration& call, TurnOutput& out) {
    PauseCall pending{.call = call.call, .started = now_};
    pending.deadline = deadline_of(call.timeout_ms);
    PausePart& part = pending.part;
    part.call = call.call;
    part.replica = config_.replica;
    part.was_paused = pause_.has_value();
    if (pause_calls_.size() >= kPendingCallsMax) {
        part.code = name_of(ErrorCode::kResourceExhausted);
        part.message = fmt::format("{} pauses are waiting already", pause_calls_.size());
        out.tokenizer.emplace_back(std::move(part));
        return;
    }
    if (part.was_paused) part.message = "already paused";

    // The latest pause decides how long. What stands still stays so: a wait does not set frozen
    // requests going again.
    if (!pause_) {
        pause_ = Pause{.mode = call.mode, .since = now_};
        ++tallies_.num_pauses;
    } else if (call.mode != PauseMode::kWait) {
        const bool takes_over = pause_->mode == PauseMode::kWait && !pause_->is_standing;
        for (PauseCall& other : pause_calls_) {
            if (takes_over) other.part.message = "a later pause did not wait for the requests";
        }
        pause_->mode = call.mode;
        pause_->is_standing = false;
    }
    pause_->until.reset();
    pause_expiry_.clear();
    if (call.max_pause_s > 0) pause_->until = now_ + from_seconds(call.max_pause_s);
    if (call.mode == PauseMode::kAbort) {
        part.num_aborted = abort_all(/*also_new=*/true, "generation was paused (abort)", out);
    } else if (call.mode == PauseMode::kRetract) {
        part.num_retracted = retract_all();
    }
    pause_calls_.push_back(std::move(pending));
}

void Scheduler::go_on(const ContinueGeneration& call, TurnOutput& out) {
    ContinuePart part{
        .call = call.call, .replica = config_.replica, .was_paused = pause_.has_value()};
    if (const std::optional<Error> reason = why_not_on()) {
        part.code = name_of(reason->code);
        part.message = reason->message;
    } else if (!pause_) {
        part.message = "not paused";
    } else {
        part.paused_s = seconds(now_ - pause_->since);
        if (const auto later = why_idle()) part.message = later->message;
        end_pause("a continue ended the pause before everything stood still", out);
    }
    out.tokenizer.emplace_back(std::move(part));
}

// Why a pause cannot end now, or nothing. Without weights alone it can: what is open goes on as
// soon as an update brings some.
std::optional<Error> Scheduler::why_not_on() const {
    if (weights_ != Weights::kTorn && memory_.is_all_resident()) return std::nullopt;
    return why_idle();
}

// max_pause_s was over: goes on by the rule of a continue. What cannot go on yet stays paused, so
// that its requests wait and are not refused, and goes on as soon as it may.
void Scheduler::end_overdue_pause(TurnOutput& out) {
    if (const std::optional<Error> reason = why_not_on()) {
        pause_expiry_ = fmt::format("stays paused: {}", reason->message);
        return;
    }
    pause_expiry_ = fmt::format("went on by itself after {:.3f} s", seconds(now_ - pause_->since));
    end_pause("max_pause_s was over before everything stood still", out);
}

// Generates again; pauses that still wait are told why they never will be.
void Scheduler::end_pause(const std::string& why, TurnOutput& out) {
    tallies_.paused += now_ - pause_->since;
    pause_.reset();
    for (PauseCall& call : pause_calls_) {
        call.part.code = name_of(ErrorCode::kAborted);
        call.part.message = why;
        out.tokenizer.emplace_back(std::move(call.part));
    }
    pause_calls_.clear();
}

void Scheduler::flush(const FlushCache& call, TurnOutput& out) {
    FlushPart part{.call = call.call, .replica = config_.replica};
    if (flush_calls_.size() >= kPendingCallsMax) {
        part.code = name_of(ErrorCode::kResourceExhausted);
        part.message = fmt::format("{} flushes are waiting already", flush_calls_.size());
        out.tokenizer.emplace_back(std::move(part));
        return;
    }
    if (!call.wait_idle && !running_.empty()) {
        part.code = name_of(ErrorCode::kFailedPrecondition);
        part.message = who_holds_pages();
        out.tokenizer.emplace_back(std::move(part));
        return;
    }
    flush_calls_.push_back({
        .call = call.call,
        .deadline = deadline_of(call.timeout_ms),
        .waits_idle = call.wait_idle,
    });
}

std::string Scheduler::who_holds_pages() const {
    std::size_t num_pages = 0;
    for (const Request* request : running_) num_pages += request->pages.size();
    return fmt::format("{} requests hold {} pages", running_.size(), num_pages);
}

void Scheduler::answer_flush(CallId call, TurnOutput& out) {
    FlushPart part{.call = call, .replica = config_.replica};
    part.pages_freed = cache_.evict(cache_.num_nodes(), pages_);
    out.tokenizer.emplace_back(std::move(part));
}

// Steps planned from now on carry it; those in flight keep the label they were planned under, and
// so do the tokens they bring.
void Scheduler::set_label(const SetWeightLabel& call, TurnOutput& out) {
    LabelPart part{
        .call = call.call,
        .replica = config_.replica,
        .epoch = version_.epoch,
        .old_label = version_.label,
        .label = version_.label,
    };
    std::optional<Error> problem;
    if (!is_ready()) {
        problem = not_ready();
    } else if (job_) {
        problem = make_error(
            ErrorCode::kFailedPrecondition,
            "update {} is under way; its own label comes with it",
            static_cast<std::uint64_t>(job_->id)
        );
    } else if (weights_ != Weights::kWhole) {
        problem = why_idle();
    }
    if (problem) {
        part.code = name_of(problem->code);
        part.message = std::move(problem->message);
    } else {
        if (version_.label != call.label) {
            version_.label = call.label;
            ++version_.serial;
        }
        part.label = version_.label;
        if (call.abort_all) {
            part.num_aborted = abort_all(
                /*also_new=*/true, fmt::format("the weights are labelled '{}'", call.label), out
            );
        }
    }
    out.tokenizer.emplace_back(std::move(part));
}

// Why the live weights cannot be read, or nothing. Torn ones can: digests tell what is torn.
std::optional<Error> Scheduler::why_unreadable() const {
    if (!is_ready()) return not_ready();
    if (memory_.state(MemoryTag::kWeights) != MemoryState::kResident) {
        return Error{
            ErrorCode::kFailedPrecondition,
            "the weights are released, or about to be; resume them first"};
    }
    if (weights_ == Weights::kAwaited) {
        return Error{
            ErrorCode::kFailedPrecondition,
            "there are no weights: none came yet, or they were released and not kept"};
    }
    return std::nullopt;
}

void Scheduler::read_tensor(const WorkerReadTensor& call, TurnOutput& out) {
    std::optional<Error> problem = why_unreadable();
    if (!problem) {
        out.workers.emplace_back(call);
        return;
    }
    out.tokenizer.emplace_back(WorkerTensor{
        .call = call.call,
        .replica = config_.replica,
        .code = std::string(name_of(problem->code)),
        .message = std::move(problem->message),
    });
}

void Scheduler::digest_weights(const WorkerDigest& call, TurnOutput& out) {
    std::optional<Error> problem = why_unreadable();
    if (!problem) {
        out.workers.emplace_back(call);
        return;
    }
    out.tokenizer.emplace_back(WorkerDigests{
        .call = call.call,
        .replica = config_.replica,
        .epoch = version_.epoch,
        .label = version_.label,
        .code = std::string(name_of(problem->code)),
        .message = std::move(problem->message),
    });
}

void Scheduler::settle(TurnOutput& out) {
    if (pause_ && !pause_->is_standing && in_flight_.empty() &&
        !(pause_->mode == PauseMode::kWait && has_started_requests())) {
        pause_->is_standing = true;
        if (pause_->mode == PauseMode::kAbort) cache_.evict(cache_.num_nodes(), pages_);
        tallies_.output_rate.stop(now_);
    }
    if (pause_ && pause_->is_standing) {
        for (PauseCall& call : pause_calls_) {
            call.part.num_frozen = static_cast<std::int64_t>(running_.size());
            call.part.num_waiting = waiting_.size();
            call.part.elapsed_us = microseconds(now_ - call.started);
            out.tokenizer.emplace_back(std::move(call.part));
        }
        pause_calls_.clear();
    }
    // Pages of requests that have ended are held until the steps in flight are done.
    if (!flush_calls_.empty() && running_.empty() && in_flight_.empty()) {
        for (const FlushCall& call : flush_calls_) answer_flush(call.call, out);
        flush_calls_.clear();
    }
    settle_update(out);
    settle_memory(out);
}

void Scheduler::act_on_time(TurnOutput& out) {
    if (pause_ && pause_->until && now_ >= *pause_->until) end_overdue_pause(out);
    std::erase_if(pause_calls_, [&](PauseCall& call) {
        if (now_ < call.deadline) return false;
        call.part.code = name_of(ErrorCode::kDeadlineExceeded);
        call.part.message = fmt::format(
            "phase pause: {} of replica {}; {} requests still run; it stays paused",
            step_in_flight(),
            raw(config_.replica),
            running_.size()
        );
        out.tokenizer.emplace_back(std::move(call.part));
        return true;
    });
    std::erase_if(flush_calls_, [&](const FlushCall& call) {
        if (now_ < call.deadline) return false;
        FlushPart part{.call = call.call, .replica = config_.replica};
        part.code = name_of(ErrorCode::kDeadlineExceeded);
        part.message = fmt::format("phase flush: {}; {}", who_holds_pages(), step_in_flight());
        out.tokenizer.emplace_back(std::move(part));
        return true;
    });
    end_late_memory_call(out);
    end_late_stand(out);
    // A rank that never answers would hold every request for ever (P5): this replica ends, and with
    // it the tree, which answers them.
    if (!in_flight_.empty() && now_ >= in_flight_.front().sent_at + config_.step_timeout) {
        out.fatal = Error{ErrorCode::kDeadlineExceeded, step_in_flight()};
    }
    if (job_ && now_ >= job_->stage_deadline) {
        fail_vote(
            make_error(
                ErrorCode::kDeadlineExceeded,
                "phase stage: no vote in time from {}",
                job_->who_has_not_voted()
            ),
            out
        );
    }
}

std::optional<TimePoint> Scheduler::next_deadline() const {
    std::optional<TimePoint> first;
    const auto add = [&](TimePoint at) {
        if (at != TimePoint::max() && (!first || at < *first)) first = at;
    };
    // One that is over and still cannot end waits for the message that mends what stops it.
    if (pause_ && pause_->until && (now_ < *pause_->until || !why_not_on())) add(*pause_->until);
    for (const PauseCall& call : pause_calls_) add(call.deadline);
    for (const FlushCall& call : flush_calls_) add(call.deadline);
    if (job_) add(job_->stage_deadline);
    if (job_ && job_->stand == UpdateJob::Stand::kWaiting) add(job_->stand_deadline);
    if (memory_.job() != nullptr && !memory_.job()->is_answered) add(memory_.job()->deadline);
    if (!in_flight_.empty()) add(in_flight_.front().sent_at + config_.step_timeout);
    return first;
}

TimePoint Scheduler::deadline_of(std::int64_t timeout_ms) const {
    if (timeout_ms <= 0) return now_ + kCallTimeout;
    return now_ + from_seconds(static_cast<double>(timeout_ms) / 1000);
}

// "step 7 waits for rank 1", for errors.
std::string Scheduler::step_in_flight() const {
    if (in_flight_.empty()) return "no step in flight";
    const InFlightStep& step = in_flight_.front();
    return fmt::format(
        "step {} has run for {:.3f} s without an answer from {}",
        raw(step.step),
        seconds(now_ - step.sent_at),
        step.who_is_missing()
    );
}

}  // namespace pitstop::scheduler
