#include "tokenizer_proc/update_coordinator.h"

#include "base/check.h"
#include "tokenizer_proc/timeout.h"

#include <algorithm>
#include <chrono>

namespace pitstop::tokenizer {
void UpdateCoordinator::set_has_weights(ReplicaId replica, bool has_weights) {
    const std::int32_t index = raw(replica);
    if (index >= 0 && index < num_replicas_)
        has_weights_[static_cast<std::size_t>(index)] = has_weights;
}

bool UpdateCoordinator::has_weights() const {
    return std::ranges::all_of(has_weights_, [](bool has) { return has; });
}

// Returns why an update with this spec (null: not a stage) cannot begin now, or nothing.
std::optional<Error> UpdateCoordinator::refusal(TimePoint now, const messages::UpdateSpec* spec)
    const {
    if (job_) return busy(now);
    return spec == nullptr ? std::nullopt : problem_of(*spec);
}

// Returns why an update with this spec could never begin, or nothing; an update in progress
// is no reason.
std::optional<Error> UpdateCoordinator::problem_of(const messages::UpdateSpec& spec) const {
    if (!spec.adapter.empty()) return std::nullopt;
    if (spec.epoch && *spec.epoch <= version_.epoch) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "epoch {} is not newer than the one that serves, {}",
            raw(*spec.epoch),
            raw(version_.epoch)
        );
    }
    if (!spec.base_digest.empty() && spec.base_digest != version_.digest) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "the update needs the version with digest {}; the one that serves has {}",
            spec.base_digest,
            version_.digest
        );
    }
    if (must_be_complete() && spec.partial) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "the engine is torn or has no weights; send a complete update. A partial one that "
            "declares an epoch, a digest or a manifest is refused until then"
        );
    }
    return std::nullopt;
}

void UpdateCoordinator::handle(
    TimePoint now, Caller caller, const messages::UpdateWeights& call, Out& out
) {
    if (auto error = refusal(now, &call.update)) return refuse(std::move(caller), *error, out);
    if (auto error = problem_of_late_part(call)) return refuse(std::move(caller), *error, out);
    begin(now, {std::move(caller), call.timeout_ms, call.update}, out);
}

void UpdateCoordinator::handle(
    TimePoint now, Caller caller, const messages::StageWeights& call, Out& out
) {
    if (auto error = refusal(now, &call.update)) return refuse(std::move(caller), *error, out);
    begin(
        now,
        {std::move(caller), call.timeout_ms, call.update, messages::UpdatePhase::kPrepared},
        out
    );
}

void UpdateCoordinator::handle(
    TimePoint now, Caller caller, const messages::RollbackWeights& call, Out& out
) {
    if (auto error = refusal(now, nullptr)) return refuse(std::move(caller), *error, out);
    if (!has_retained_ || is_torn_) {
        return refuse(
            std::move(caller),
            make_error(
                ErrorCode::kFailedPrecondition,
                "no previous version is retained: nothing was committed since the last stage "
                "began; "
                "update to the directory of that version"
            ),
            out
        );
    }
    messages::UpdateSpec spec;
    spec.kv_policy = call.kv_policy;
    begin(
        now,
        {std::move(caller),
         call.timeout_ms,
         std::move(spec),
         messages::UpdatePhase::kCommitted,
         /*is_rollback=*/true},
        out
    );
}

// Lets a call continue the waiting session or stage.
void UpdateCoordinator::begin_waiting(TimePoint now, Caller caller, std::int64_t timeout_ms) {
    job_->caller = std::move(caller);
    job_->started = now;
    job_->deadline = now + timeout_or(kCallTimeout, timeout_ms);
    job_->caller_deadline = job_->deadline;
}

void UpdateCoordinator::order_fill(TimePoint now, messages::WeightSource source, Out& out) {
    order(
        messages::UpdateOrder::kFill,
        messages::UpdateFill{
            job_->id, ++job_->num_buckets, std::move(source), time_of_replicas(now)},
        out
    );
}

// The session has all its buckets.
void UpdateCoordinator::order_finish(
    TimePoint now, const std::string& label, const std::string& digest, Out& out
) {
    job_->goal = messages::UpdatePhase::kCommitted;
    order(
        messages::UpdateOrder::kStage,
        messages::UpdateFinish{job_->id, label, digest, time_of_replicas(now)},
        out
    );
}

void UpdateCoordinator::begin(TimePoint now, Begin begin, Out& out) {
    Job& job = job_.emplace(static_cast<std::size_t>(num_replicas_));
    job.begun = now;
    job.id = std::exchange(
        next_id_, static_cast<messages::UpdateId>(static_cast<std::uint64_t>(next_id_) + 1)
    );
    job.goal = begin.goal;
    job.is_rollback = begin.is_rollback;
    job.new_epoch = begin.spec.epoch.value_or(next(version_.epoch));
    job.spec = std::move(begin.spec);
    if (job.is_of_adapter())
        job.new_epoch = Epoch{static_cast<std::int64_t>(static_cast<std::uint64_t>(job.id))};
    begin_waiting(now, std::move(begin.caller), begin.timeout_ms);
    if (job.is_rollback)
        return order(
            messages::UpdateOrder::kStage, messages::UpdateRollback{job.id, job.new_epoch}, out
        );
    // The stage overwrites the retained copy; an adapter has memory of its own.
    if (!job.is_of_adapter()) has_retained_ = false;
    if (job.spec.mode == messages::UpdateMode::kDirect) return order_ready(now, out);
    order_stage(now, out);
}

void UpdateCoordinator::order(messages::UpdateOrder what, Order order, Out& out) {
    job_->round.ask(what);
    job_->awaited.assign(static_cast<std::size_t>(num_replicas_), {});
    out.orders.push_back(std::move(order));
}

void UpdateCoordinator::order_stage(TimePoint now, Out& out) {
    // The outcomes that replicas reported when they stopped do not describe the write
    // that begins now.
    job_->outcomes.assign(job_->outcomes.size(), {});
    order(
        job_->goal == messages::UpdatePhase::kOpen ? messages::UpdateOrder::kOpen
                                                   : messages::UpdateOrder::kStage,
        messages::UpdateStage{job_->id, job_->spec, job_->new_epoch, time_of_replicas(now)},
        out
    );
}

void UpdateCoordinator::order_ready(TimePoint now, Out& out) {
    order(
        messages::UpdateOrder::kReady,
        messages::UpdateReady{job_->id, job_->spec.kv_policy, time_of_replicas(now)},
        out
    );
}

// A replica gives up a little before the door, so that the answer names the rank.
std::int64_t UpdateCoordinator::time_of_replicas(TimePoint now) const {
    const auto all = std::chrono::duration_cast<std::chrono::milliseconds>(job_->deadline - now);
    const auto head_start = std::min(all / 10, std::chrono::milliseconds(1000));
    return std::max<std::int64_t>(1, (all - head_start).count());
}

void UpdateCoordinator::record_awaited(messages::UpdateWaits waits) {
    const std::int32_t index = raw(waits.replica);
    if (!job_ || waits.update != job_->id || index < 0 || index >= num_replicas_ ||
        (phase() != messages::UpdatePhase::kCommitting &&
         phase() != messages::UpdatePhase::kDropping)) {
        ++num_late_parts_;
        return;
    }
    job_->awaited[static_cast<std::size_t>(index)] = std::move(waits.ranks);
}

void UpdateCoordinator::handle_part(TimePoint now, const messages::UpdatePart& part, Out& out) {
    if (!job_ || part.update != job_->id || !job_->round.awaits(part.order, raw(part.replica))) {
        ++num_late_parts_;
        return;
    }
    const auto at = static_cast<std::size_t>(raw(part.replica));
    const bool is_committing = phase() == messages::UpdatePhase::kCommitting;
    job_->answers[at] = part;
    if (!part.outcome.ranks.empty() || is_committing) job_->outcomes[at] = part.outcome;
    switch (job_->round.record_answer(
        at, part.ok ? messages::UpdateRound::Answer::kDone : messages::UpdateRound::Answer::kFailed
    )) {
        case messages::UpdateRound::Progress::kGoesOn:
            return;
        case messages::UpdateRound::Progress::kDone:
            return all_answered(now, out);
        case messages::UpdateRound::Progress::kFailed:
            break;
    }
    // The replica refused a commit although it was prepared and ready, and other replicas may have
    // committed. So no replica generates until the next complete update, which must be newer than
    // the refused one.
    if (is_committing && !job_->is_of_adapter()) version_ = decided_;
    begin_drop(
        now, make_error(ErrorCode::kInternal, "replica {}: {}", at, part.verdict.message), out
    );
}

// Every replica has completed the latest order.
void UpdateCoordinator::all_answered(TimePoint now, Out& out) {
    Job& job = *job_;
    if (job.round.order() == messages::UpdateOrder::kStage) {
        if (auto problem = problem_of_stages()) return begin_drop(now, *std::move(problem), out);
        job.label = job.answers.front().label;
        job.digest = job.answers.front().digest;
        job.last_prepared = now;
    }
    switch (phase()) {
        case messages::UpdatePhase::kOpen:
            if (auto source = std::exchange(job.first_source, std::nullopt))
                return order_fill(now, *std::move(source), out);
            // With the last missing tensor, an engine without weights is complete.
            if (job.is_collection && !job.spec.partial && num_missing() == 0)
                return order_finish(now, job.spec.label, job.spec.digest, out);
            if (job.is_unnamed && !job.idle_since) ended_.forget_told_loss();
            reply(now, std::nullopt, out);
            job.idle_since = now;
            job.deadline = now + job.idle_timeout;
            return;
        case messages::UpdatePhase::kPrepared:
            if (job.goal == messages::UpdatePhase::kCommitted) return order_ready(now, out);
            reply(now, std::nullopt, out);
            job.idle_since = now;
            job.deadline = now + kStagedHoldMax;
            return;
        case messages::UpdatePhase::kStopped:
            return order_stage(now, out);
        case messages::UpdatePhase::kReady:  // only votes of all replicas lead to a commit (P2)
            job.commit_ordered = now;
            if (!job.is_of_adapter()) decide();
            return order(messages::UpdateOrder::kCommit, messages::UpdateCommit{job.id}, out);
        case messages::UpdatePhase::kCommitted:
            return finish_commit(now, out);
        case messages::UpdatePhase::kDropped:
            return finish_drop(now, out);
        default:
            CHECK(false);
    }
}

// Replicas that are prepared must hold the same weights.
std::optional<Error> UpdateCoordinator::problem_of_stages() const {
    const messages::UpdatePart& first = job_->answers.front();
    for (const messages::UpdatePart& answer : job_->answers) {
        if (answer.digest == first.digest) continue;
        return make_error(
            ErrorCode::kDataLoss,
            "replicas {} and {} staged different weights: digests {} and {}",
            raw(first.replica),
            raw(answer.replica),
            first.digest,
            answer.digest
        );
    }
    return std::nullopt;
}

// Returns whether replicas may have different weights, or one may be half-written. True if a commit
// was ordered; or if a direct stage was, unless every rank has reported that it failed before it
// wrote anything.
bool UpdateCoordinator::may_be_torn() const {
    // an adapter's update does not change the model's weights
    if (job_->is_of_adapter()) return false;
    if (phase() == messages::UpdatePhase::kCommitting) return true;
    const bool is_overwritten = job_->spec.mode == messages::UpdateMode::kDirect &&
                                (phase() == messages::UpdatePhase::kOverwriting ||
                                 phase() == messages::UpdatePhase::kReady);
    return is_overwritten &&
           std::ranges::any_of(job_->outcomes, [](const messages::ReplicaOutcome& replica) {
               return messages::may_have_written(replica.ranks);
           });
}

void UpdateCoordinator::begin_drop(TimePoint now, Error failure, Out& out) {
    const bool is_torn = may_be_torn();
    const bool is_ended_by_commit = job_->goal == messages::UpdatePhase::kCommitted;
    if (job_->is_collection && !job_->is_loss_told && phase() != messages::UpdatePhase::kDropping) {
        out.lost = {
            job_->num_buckets,
            bytes_staged(),
            failure.message,
            is_ended_by_commit && job_->caller ? job_->caller->peer : std::string(),
            job_->called_label};
    }
    job_->failure = std::move(failure);
    for (std::size_t i = 0; i < job_->answers.size(); ++i) {
        const messages::UpdatePart& answer = job_->answers[i];
        if (!job_->round.has_answered(i) || answer.ok || answer.verdict.is_done()) continue;
        job_->failure.code = answer.verdict.error().code;
        break;
    }
    // The caller is answered in time even if a replica is silent: tick() continues without it.
    job_->deadline = now + kDropTimeout;
    if (job_->caller) {
        job_->deadline =
            std::clamp<TimePoint>(job_->caller_deadline, now + kDropGrace, now + kDropTimeout);
    }
    const std::string reason = job_->failure.message;
    order(messages::UpdateOrder::kDrop, messages::UpdateDrop{job_->id, reason, is_torn}, out);
}

// The commit's order decides: after that, the previous version cannot be restored.
void UpdateCoordinator::decide() {
    const Job& job = *job_;
    std::string path = job.spec.partial ? "" : job.spec.source.path;
    if (job.is_rollback) path = retained_path_;
    decided_ = {
        .epoch = job.new_epoch, .label = job.label, .digest = job.digest, .path = std::move(path)};
}

void UpdateCoordinator::finish_commit(TimePoint now, Out& out) {
    Job& job = *job_;
    if (job.is_of_adapter()) {
        reply(now, std::nullopt, out);
        end_session(
            fmt::format(
                "was committed as version {} of '{}'", raw(job.new_epoch), job.spec.adapter
            ),
            Loss::kNone
        );
        job_.reset();
        return;
    }
    // A direct update keeps no copy of the previous version; a rollback keeps the version it left.
    has_retained_ = job.spec.mode == messages::UpdateMode::kStaged;
    is_torn_ = false;
    has_weights_.assign(has_weights_.size(), true);
    retained_path_ = std::move(version_.path);
    version_ = decided_;
    collected_.reset();
    const bool is_of_nameless_calls = job.is_collection || job.num_nameless > 0;
    if (is_of_nameless_calls && job.spec.partial && !job.called_label.empty())
        collected_ = {.epoch = version_.epoch, .label = job.called_label};
    reply(now, std::nullopt, out);
    out.has_made_whole = job.is_collection && !job.spec.partial;
    end_session(fmt::format("was committed as epoch {}", raw(version_.epoch)), Loss::kNone);
    job_.reset();
}

void UpdateCoordinator::finish_drop(TimePoint now, Out& out) {
    Job& job = *job_;
    is_torn_ = is_torn_ || std::ranges::any_of(job.answers, [](const messages::UpdatePart& answer) {
                   return answer.state == messages::UpdateState::kTorn;
               });
    const bool was_asked_for =
        job.failure.code == ErrorCode::kAborted && job.failure.message.empty();
    const std::string how =
        "was dropped: " + (was_asked_for ? "a call asked for it" : job.failure.message);
    if (!job.caller) out.notes.push_back(fmt::format("{} {}", describe(), how));
    // The caller that ends a session learns the outcome, and no call of the session follows.
    const bool is_known = job.goal == messages::UpdatePhase::kCommitted;
    end_session(how, is_known ? Loss::kNone : Loss::kOfUnnamedCalls);
    if (job.successor && job.caller) return begin_successor(now, out);
    reply(now, was_asked_for ? std::nullopt : std::optional<Error>(job.failure), out);
    job_.reset();
}

void UpdateCoordinator::tick(TimePoint now, Out& out) {
    ended_.expire_loss(now);
    if (!job_ || now < job_->deadline) return;
    const auto late = [&] {
        return fmt::format("phase {}: no answer from {}", phase_name(), who_is_missing());
    };
    switch (phase()) {
        case messages::UpdatePhase::kOpen:
            return begin_drop(
                now,
                make_error(
                    ErrorCode::kDeadlineExceeded,
                    "the session timed out after {:.1f} s without a call",
                    seconds(job_->idle_timeout)
                ),
                out
            );
        case messages::UpdatePhase::kPrepared:
            return begin_drop(
                now,
                {ErrorCode::kDeadlineExceeded,
                 "the staged update was neither committed nor dropped in time"},
                out
            );
        case messages::UpdatePhase::kCommitting:
        case messages::UpdatePhase::kDropping: {
            // Only the caller stops waiting. The order completes when the replica answers, and no
            // other update begins before that.
            std::string message = late();
            if (!job_->failure.message.empty())
                message += "; dropping because: " + job_->failure.message;
            reply(now, Error{ErrorCode::kDeadlineExceeded, std::move(message)}, out);
            job_->deadline = TimePoint::max();
            return;
        }
        default:
            return begin_drop(now, {ErrorCode::kDeadlineExceeded, late()}, out);
    }
}

std::optional<TimePoint> UpdateCoordinator::next_deadline() const {
    if (!job_ || job_->deadline == TimePoint::max()) return std::nullopt;
    return job_->deadline;
}

void UpdateCoordinator::fail(const std::string& message, Out& out) {
    if (!job_ || !job_->caller) return;
    Error error{ErrorCode::kUnavailable, fmt::format("phase {}: {}", phase_name(), message)};
    reply(job_->started, std::move(error), out);
}

}  // namespace pitstop::tokenizer
