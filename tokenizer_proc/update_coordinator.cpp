#include "tokenizer_proc/update_coordinator.h"

#include "base/check.h"
#include "tokenizer_proc/timeout.h"

#include <algorithm>
#include <chrono>

namespace pitstop::tokenizer {
namespace {

// Which order a phase waits for the answers to, as UpdatePart::phase names it.
constexpr std::string_view kOpened = "opened";
constexpr std::string_view kFilled = "filled";
constexpr std::string_view kPrepared = "prepared";
constexpr std::string_view kReady = "ready";
constexpr std::string_view kCommitted = "committed";
constexpr std::string_view kDropped = "dropped";

}  // namespace

void UpdateCoordinator::set_has_weights(ReplicaId replica, bool has_weights) {
    const std::int32_t index = raw(replica);
    if (index >= 0 && index < num_replicas_)
        has_weights_[static_cast<std::size_t>(index)] = has_weights;
}

bool UpdateCoordinator::has_weights() const {
    return std::ranges::all_of(has_weights_, [](bool has) { return has; });
}

// Why an update with this spec (null: not a stage) cannot begin now, or nothing.
std::optional<Error> UpdateCoordinator::refusal(const messages::UpdateSpec* spec) const {
    if (phase_ != Phase::kIdle) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "update {} (label '{}') is under way, in phase {}; commit or drop it, or wait",
            static_cast<std::uint64_t>(job_->id),
            job_->spec.label,
            phase_name()
        );
    }
    if (spec == nullptr) return std::nullopt;
    if (spec->epoch && *spec->epoch <= version_.epoch) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "epoch {} is not newer than the one that serves, {}",
            raw(*spec->epoch),
            raw(version_.epoch)
        );
    }
    if (!spec->base_digest.empty() && spec->base_digest != version_.digest) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "the update is made for the version with digest {}; {} serves",
            spec->base_digest,
            version_.digest
        );
    }
    if (must_be_complete() && spec->partial) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "the engine is torn or has no weights; only a complete update mends it, not a partial "
            "one that declares an epoch, a digest or a manifest of its own"
        );
    }
    return std::nullopt;
}

void UpdateCoordinator::update(
    TimePoint now, Caller caller, const messages::UpdateWeights& call, Out& out
) {
    if (auto error = refusal(&call.update)) return refuse(std::move(caller), *error, out);
    begin(now, std::move(caller), call.timeout_ms, Kind::kUpdate, call.update, out);
}

void UpdateCoordinator::stage(
    TimePoint now, Caller caller, const messages::StageWeights& call, Out& out
) {
    if (auto error = refusal(&call.update)) return refuse(std::move(caller), *error, out);
    begin(now, std::move(caller), call.timeout_ms, Kind::kStageOnly, call.update, out);
}

void UpdateCoordinator::rollback(
    TimePoint now, Caller caller, const messages::RollbackWeights& call, Out& out
) {
    if (auto error = refusal(nullptr)) return refuse(std::move(caller), *error, out);
    if (!has_retained_ || is_torn_) {
        return refuse(
            std::move(caller),
            make_error(
                ErrorCode::kFailedPrecondition,
                "no previous version is retained: nothing was committed since the last stage began"
            ),
            out
        );
    }
    messages::UpdateSpec spec;
    spec.kv_policy = call.kv_policy;
    begin(now, std::move(caller), call.timeout_ms, Kind::kRollback, std::move(spec), out);
}

void UpdateCoordinator::begin_session(
    TimePoint now, Caller caller, const messages::BeginUpdate& call, Out& out
) {
    messages::UpdateSpec spec = call.update;
    // Where there is nothing to lay a part over, all of it must have come by the commit.
    if (must_be_complete()) spec.partial = false;
    if (auto error = refusal(&spec)) return refuse(std::move(caller), *error, out);
    begin(now, std::move(caller), call.timeout_ms, Kind::kSession, std::move(spec), out);
    job_->idle_timeout = timeout_or(kSessionIdle, call.idle_timeout_ms);
}

// Why a call of `session` (0: any) cannot be made now, or nothing. A session that is open may be
// filled and committed; what is staged may only be committed.
std::optional<Error> UpdateCoordinator::not_at(std::uint64_t session, bool needs_open) const {
    if (phase_ != Phase::kOpen && (needs_open || phase_ != Phase::kStaged)) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "{} (the engine is in phase {})",
            needs_open ? "no session is open" : "nothing is staged",
            phase_name()
        );
    }
    const auto open = static_cast<std::uint64_t>(job_->id);
    if (session == 0 || session == open) return std::nullopt;
    return make_error(
        ErrorCode::kFailedPrecondition, "session {} is over; {} is under way", session, open
    );
}

// Somebody goes on with what was held.
void UpdateCoordinator::hear_caller(TimePoint now, Caller caller, std::int64_t timeout_ms) {
    job_->caller = std::move(caller);
    job_->started = now;
    job_->deadline = now + timeout_or(kCallTimeout, timeout_ms);
    job_->caller_deadline = job_->deadline;
}

void UpdateCoordinator::bucket(
    TimePoint now, Caller caller, const messages::UpdateBucket& call, Out& out
) {
    if (auto error = not_at(call.session, /*needs_open=*/true))
        return refuse(std::move(caller), *error, out);
    if (call.source.format == messages::TensorFormat::kSparse && job_->spec.base_digest.empty()) {
        return refuse(
            std::move(caller),
            make_error(
                ErrorCode::kFailedPrecondition,
                "a sparse bucket changes the version it was made for; the session named no "
                "base_digest"
            ),
            out
        );
    }
    hear_caller(now, std::move(caller), call.timeout_ms);
    order_fill(now, call.source, out);
}

void UpdateCoordinator::order_fill(TimePoint now, messages::WeightSource source, Out& out) {
    order(
        Phase::kFilling,
        messages::UpdateFill{
            job_->id, ++job_->num_buckets, std::move(source), time_of_replicas(now)},
        out
    );
}

void UpdateCoordinator::commit(
    TimePoint now, Caller caller, const messages::CommitWeights& call, Out& out
) {
    if (auto error = not_at(call.session, /*needs_open=*/false))
        return refuse(std::move(caller), *error, out);
    hear_caller(now, std::move(caller), call.timeout_ms);
    if (call.kv_policy) job_->spec.kv_policy = *call.kv_policy;
    if (phase_ == Phase::kStaged) {
        job_->kind = Kind::kUpdate;
        return order_ready(now, out);
    }
    const bool is_named = !call.label.empty() || !job_->is_collection;
    order_finish(now, is_named ? call.label : job_->spec.label, call.digest, out);
}

// The session has all its buckets.
void UpdateCoordinator::order_finish(
    TimePoint now, const std::string& label, const std::string& digest, Out& out
) {
    job_->kind = Kind::kUpdate;
    order(
        Phase::kStaging, messages::UpdateFinish{job_->id, label, digest, time_of_replicas(now)}, out
    );
}

void UpdateCoordinator::drop(
    TimePoint now, Caller caller, const messages::DropStage& call, Out& out
) {
    if (auto error = not_at(call.session, /*needs_open=*/false))
        return refuse(std::move(caller), *error, out);
    hear_caller(now, std::move(caller), call.timeout_ms);
    begin_drop(now, Error{ErrorCode::kAborted, ""}, out);
}

void UpdateCoordinator::begin(
    TimePoint now,
    Caller caller,
    std::int64_t timeout_ms,
    Kind kind,
    messages::UpdateSpec spec,
    Out& out
) {
    Job job;
    job.id = std::exchange(
        next_id_, static_cast<messages::UpdateId>(static_cast<std::uint64_t>(next_id_) + 1)
    );
    job.kind = kind;
    job.new_epoch = spec.epoch.value_or(next(version_.epoch));
    job.spec = std::move(spec);
    // Said to every replica, so that all have one label whatever each had before.
    if (job.spec.label.empty()) job.spec.label = version_.label;
    job.caller = std::move(caller);
    job.started = now;
    job.deadline = now + timeout_or(kCallTimeout, timeout_ms);
    job.caller_deadline = job.deadline;
    job.outcomes.resize(static_cast<std::size_t>(num_replicas_));
    job_ = std::move(job);
    if (kind == Kind::kRollback)
        return order(Phase::kStaging, messages::UpdateRollback{job_->id, job_->new_epoch}, out);
    has_retained_ = false;  // the stage overwrites the retained copy
    if (job_->spec.mode == messages::UpdateMode::kDirect) {
        return order_ready(now, out);
    }
    order_stage(now, out);
}

void UpdateCoordinator::order(Phase phase, Order order, Out& out) {
    phase_ = phase;
    job_->answers.assign(static_cast<std::size_t>(num_replicas_), std::nullopt);
    job_->awaited.assign(static_cast<std::size_t>(num_replicas_), {});
    out.orders.push_back(std::move(order));
}

void UpdateCoordinator::order_stage(TimePoint now, Out& out) {
    order(
        job_->kind == Kind::kSession ? Phase::kOpening : Phase::kStaging,
        messages::UpdateStage{job_->id, job_->spec, job_->new_epoch, time_of_replicas(now)},
        out
    );
}

void UpdateCoordinator::order_ready(TimePoint now, Out& out) {
    order(
        Phase::kReadying,
        messages::UpdateReady{job_->id, job_->spec.kv_policy, time_of_replicas(now)},
        out
    );
}

// A replica gives up a little before the door does, so that the answer names the rank.
std::int64_t UpdateCoordinator::time_of_replicas(TimePoint now) const {
    const auto all = std::chrono::duration_cast<std::chrono::milliseconds>(job_->deadline - now);
    const auto head_start = std::min(all / 10, std::chrono::milliseconds(1000));
    return std::max<std::int64_t>(1, (all - head_start).count());
}

void UpdateCoordinator::waits(messages::UpdateWaits waits) {
    const std::int32_t index = raw(waits.replica);
    if (!job_ || waits.update != job_->id || index < 0 || index >= num_replicas_ ||
        (phase_ != Phase::kCommitting && phase_ != Phase::kDropping)) {
        ++num_late_parts_;
        return;
    }
    job_->awaited[static_cast<std::size_t>(index)] = std::move(waits.ranks);
}

void UpdateCoordinator::part(TimePoint now, const messages::UpdatePart& part, Out& out) {
    const auto expected = [&]() -> std::string_view {
        switch (phase_) {
            case Phase::kOpening:
                return kOpened;
            case Phase::kFilling:
                return kFilled;
            case Phase::kStaging:
                return kPrepared;
            case Phase::kReadying:
                return kReady;
            case Phase::kCommitting:
                return kCommitted;
            case Phase::kDropping:
                return kDropped;
            case Phase::kIdle:
            case Phase::kOpen:
            case Phase::kStaged:
                break;
        }
        return "";
    }();
    const std::int32_t index = raw(part.replica);
    if (!job_ || part.update != job_->id || part.phase != expected || index < 0 ||
        index >= num_replicas_ || job_->answers[static_cast<std::size_t>(index)]) {
        ++num_late_parts_;
        return;
    }
    const auto at = static_cast<std::size_t>(index);
    job_->answers[at] = part;
    if (!part.outcome.ranks.empty() || phase_ == Phase::kCommitting)
        job_->outcomes[at] = part.outcome;
    if (!part.ok && phase_ != Phase::kDropping) {
        // Refused although it was prepared and ready: others may have committed. So no replica
        // generates until the next complete update, which must be newer than theirs.
        if (phase_ == Phase::kCommitting) version_ = decided_;
        return begin_drop(
            now, make_error(ErrorCode::kInternal, "replica {}: {}", index, part.message), out
        );
    }
    const bool is_complete =
        std::all_of(job_->answers.begin(), job_->answers.end(), [](const auto& answer) {
            return answer.has_value();
        });
    if (is_complete) all_answered(now, out);
}

// Every replica has answered the order under way, and none with a failure that matters.
void UpdateCoordinator::all_answered(TimePoint now, Out& out) {
    Job& job = *job_;
    switch (phase_) {
        case Phase::kOpening:
            if (auto source = std::exchange(job.first_source, std::nullopt))
                return order_fill(now, *std::move(source), out);
            [[fallthrough]];
        case Phase::kFilling:
            // With its last tensor an engine without weights has all that it waited for.
            if (job.is_collection && !job.spec.partial && num_missing() == 0)
                return order_finish(now, job.spec.label, job.spec.digest, out);
            phase_ = Phase::kOpen;
            reply(now, std::nullopt, out);
            job.deadline = now + job.idle_timeout;
            return;
        case Phase::kStaging: {
            const messages::UpdatePart& first = *job.answers.front();
            for (const auto& answer : job.answers) {
                if (answer->digest == first.digest) continue;
                return begin_drop(
                    now,
                    make_error(
                        ErrorCode::kDataLoss,
                        "replicas {} and {} staged different weights: digests {} and {}",
                        raw(first.replica),
                        raw(answer->replica),
                        first.digest,
                        answer->digest
                    ),
                    out
                );
            }
            job.label = first.label;
            job.digest = first.digest;
            job.last_prepared = now;
            job.is_staging_done = true;
            if (job.kind == Kind::kStageOnly) {
                phase_ = Phase::kStaged;
                reply(now, std::nullopt, out);
                job.deadline = now + kStagedHoldMax;
                return;
            }
            if (job.is_ready_done) break;
            return order_ready(now, out);
        }
        case Phase::kReadying:
            job.is_ready_done = true;
            if (job.is_staging_done) break;
            return order_stage(now, out);
        case Phase::kCommitting:
            return finish_commit(now, out);
        case Phase::kDropping:
            return finish_drop(now, out);
        case Phase::kIdle:
        case Phase::kOpen:
        case Phase::kStaged:
            CHECK(false);
    }
    CHECK(job.is_staging_done && job.is_ready_done);  // no commit without all votes (P2)
    job.commit_ordered = now;
    decide();
    order(Phase::kCommitting, messages::UpdateCommit{job.id}, out);
}

// Whether replicas may differ, or one of them be half-written: a commit was ordered; or a direct
// stage was, and not every rank has said that it failed before it wrote anything.
bool UpdateCoordinator::may_be_torn() const {
    if (phase_ == Phase::kCommitting) return true;
    if (job_->spec.mode != messages::UpdateMode::kDirect || !job_->is_ready_done) return false;
    return !std::ranges::all_of(job_->outcomes, [](const messages::ReplicaOutcome& replica) {
        return !replica.ranks.empty() &&
               std::ranges::all_of(replica.ranks, [](const messages::RankOutcome& rank) {
                   return !rank.ok && rank.phase == "idle";
               });
    });
}

void UpdateCoordinator::begin_drop(TimePoint now, Error failure, Out& out) {
    const bool is_torn = may_be_torn();
    job_->failure = std::move(failure);
    for (const auto& answer : job_->answers) {
        if (!answer || answer->ok || answer->code.empty()) continue;
        job_->failure.code = error_code_named(answer->code);
        break;
    }
    // Who called hears in time, even if a replica does not: tick() goes on without them.
    job_->deadline = now + kDropTimeout;
    if (job_->caller) {
        job_->deadline =
            std::clamp<TimePoint>(job_->caller_deadline, now + kDropGrace, now + kDropTimeout);
    }
    const std::string reason = job_->failure.message;
    order(Phase::kDropping, messages::UpdateDrop{job_->id, reason, is_torn}, out);
}

// The commit's order is what decides: from there on nothing brings the version before it back.
void UpdateCoordinator::decide() {
    const Job& job = *job_;
    std::string path = job.spec.partial ? "" : job.spec.source.path;
    if (job.kind == Kind::kRollback) path = retained_path_;
    decided_ = {
        .epoch = job.new_epoch, .label = job.label, .digest = job.digest, .path = std::move(path)};
}

void UpdateCoordinator::finish_commit(TimePoint now, Out& out) {
    Job& job = *job_;
    // A direct update has no copy to go back to; a rollback leaves the version it left.
    has_retained_ = job.spec.mode == messages::UpdateMode::kStaged;
    is_torn_ = false;
    has_weights_.assign(has_weights_.size(), true);
    retained_path_ = std::move(version_.path);
    version_ = decided_;
    phase_ = Phase::kIdle;
    reply(now, std::nullopt, out);
    job_.reset();
}

void UpdateCoordinator::finish_drop(TimePoint now, Out& out) {
    Job& job = *job_;
    const bool is_any_torn =
        std::any_of(job.answers.begin(), job.answers.end(), [](const auto& answer) {
            return answer->state == "torn";
        });
    is_torn_ = is_torn_ || is_any_torn;
    phase_ = Phase::kIdle;
    const bool was_asked_for =
        job.failure.code == ErrorCode::kAborted && job.failure.message.empty();
    reply(now, was_asked_for ? std::nullopt : std::optional<Error>(job.failure), out);
    job_.reset();
}

void UpdateCoordinator::tick(TimePoint now, Out& out) {
    if (!job_ || now < job_->deadline) return;
    switch (phase_) {
        case Phase::kOpening:
        case Phase::kFilling:
        case Phase::kStaging:
        case Phase::kReadying:
            return begin_drop(
                now,
                make_error(
                    ErrorCode::kDeadlineExceeded,
                    "phase {}: no answer from {}",
                    phase_name(),
                    who_is_missing()
                ),
                out
            );
        case Phase::kOpen:
            job_->failure = {
                ErrorCode::kDeadlineExceeded, "nobody went on with the session in time"};
            return begin_drop(now, job_->failure, out);
        case Phase::kStaged:
            job_->failure = {ErrorCode::kDeadlineExceeded, "the stage was held too long"};
            return begin_drop(now, job_->failure, out);
        case Phase::kCommitting:
        case Phase::kDropping: {
            // The order stands: it is carried out whenever the replica answers, and until then no
            // other update begins. Only the caller stops waiting.
            std::string message =
                fmt::format("phase {}: no answer from {}", phase_name(), who_is_missing());
            if (!job_->failure.message.empty())
                message += "; dropping because: " + job_->failure.message;
            reply(now, Error{ErrorCode::kDeadlineExceeded, std::move(message)}, out);
            job_->deadline = TimePoint::max();
            return;
        }
        case Phase::kIdle:
            return;
    }
}

std::optional<TimePoint> UpdateCoordinator::next_deadline() const {
    if (!job_ || job_->deadline == TimePoint::max()) return std::nullopt;
    return job_->deadline;
}

void UpdateCoordinator::fail(const std::string& message, Out& out) {
    if (!job_ || !job_->caller) return;
    reply(job_->started, Error{ErrorCode::kUnavailable, message}, out);
}

}  // namespace pitstop::tokenizer
