#include "scheduler_proc/replica_update.h"

#include "base/check.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace pitstop::scheduler {
namespace {

constexpr std::string_view kOpened = "opened";
constexpr std::string_view kFilled = "filled";
constexpr std::string_view kPrepared = "prepared";
constexpr std::string_view kReady = "ready";
constexpr std::string_view kCommitted = "committed";
constexpr std::string_view kDropped = "dropped";

std::uint64_t number(messages::UpdateId id) { return static_cast<std::uint64_t>(id); }

Error wrong_order(std::string_view order, messages::UpdateId id, std::string_view why) {
    return make_error(
        ErrorCode::kFailedPrecondition, "{} of update {}: {}", order, number(id), why
    );
}

// A rank gives up a little before its scheduler does, so that it says itself what it waited for.
std::int64_t time_of_workers(std::int64_t timeout_ms) {
    constexpr std::int64_t kHeadStartMs = 500;
    return timeout_ms - std::min(timeout_ms / 10, kHeadStartMs);
}

}  // namespace

ReplicaUpdate::ReplicaUpdate(const SchedulerConfig& config) : config_(config) {
    version_.epoch = config.epoch;
    version_.label = config.label;
}

void ReplicaUpdate::relabel(const std::string& label) {
    if (version_.label == label) return;
    version_.label = label;
    ++version_.serial;
}

bool ReplicaUpdate::is_asked_to_stand() const {
    return job_ && job_->stand != UpdateJob::Stand::kNotAsked && job_->end == UpdateJob::End::kNone;
}

std::optional<Error> ReplicaUpdate::problem_of_epoch(Epoch new_epoch) const {
    if (new_epoch > version_.epoch) return std::nullopt;
    return make_error(
        ErrorCode::kFailedPrecondition,
        "epoch {} is not newer than the one that serves, {}",
        raw(new_epoch),
        raw(version_.epoch)
    );
}

std::optional<Error> ReplicaUpdate::problem_of_stage(
    const messages::UpdateStage& order, const WhyNot& why_not
) const {
    if (why_not) return wrong_order("stage", order.update, *why_not);
    if (const auto problem = messages::invalid(order.spec))
        return Error{ErrorCode::kInvalidArgument, *problem};
    if (auto error = problem_of_epoch(order.new_epoch)) return error;
    if (!has_weights() && order.spec.partial) {
        return wrong_order(
            "stage", order.update, "torn or without weights; only a complete update mends it"
        );
    }
    if (order.spec.mode == messages::UpdateMode::kDirect) {
        // It overwrites what serves: only after this replica has been told to stand still.
        const bool is_standing = job_ && job_->id == order.update &&
                                 job_->kind == UpdateJob::Kind::kDirect &&
                                 job_->stand == UpdateJob::Stand::kReady && !job_->is_stage_sent &&
                                 job_->end == UpdateJob::End::kNone;
        if (!is_standing)
            return wrong_order("direct stage", order.update, "not standing still for it");
    } else if (job_) {
        return wrong_order(
            "stage", order.update, fmt::format("update {} is under way", number(job_->id))
        );
    }
    return std::nullopt;
}

void ReplicaUpdate::stage(
    messages::UpdateStage order, TimePoint now, const WhyNot& why_not, TurnOutput& out
) {
    const bool is_session = order.spec.source.kind == messages::SourceKind::kBuckets;
    if (auto error = problem_of_stage(order, why_not)) {
        const std::string_view phase = is_session ? kOpened : kPrepared;
        return refuse_order(order.update, phase, *std::move(error), out);
    }
    if (!job_) {
        job_.emplace(order.update, UpdateJob::Kind::kStaged, config_.tp);
        job_->kv_policy = order.spec.kv_policy;
    }
    UpdateJob& job = *job_;
    job.new_epoch = order.new_epoch;
    job.label = order.spec.label.empty() ? version_.label : order.spec.label;
    job.ask(is_session ? UpdateJob::Vote::kFilling : UpdateJob::Vote::kStaging);
    job.stage_deadline = deadline_of(now, order.timeout_ms);
    job.is_stage_sent = true;
    for (messages::RankOutcome& rank : job.ranks) rank.phase = "stage";
    job.spec = std::move(order.spec);
    retained_.reset();  // its copy is what the stage overwrites
    out.workers.emplace_back(messages::WorkerStage{
        .update = job.id,
        .spec = job.spec,
        .timeout_ms = time_of_workers(order.timeout_ms),
    });
    job.spec.source.payloads.clear();  // large, and not needed again
}

bool ReplicaUpdate::is_session_open(messages::UpdateId update) const {
    return job_ && job_->id == update && job_->vote == UpdateJob::Vote::kOpen &&
           job_->end == UpdateJob::End::kNone;
}

void ReplicaUpdate::fill(messages::UpdateFill order, TimePoint now, TurnOutput& out) {
    const auto refuse_with = [&](Error error) {
        refuse_order(order.update, kFilled, std::move(error), out);
    };
    if (const auto problem = messages::invalid(order.source))
        return refuse_with({ErrorCode::kInvalidArgument, *problem});
    if (!is_session_open(order.update))
        return refuse_with(wrong_order("fill", order.update, "its session is not open"));
    UpdateJob& job = *job_;
    job.ask(UpdateJob::Vote::kFilling);
    job.bucket = order.bucket;
    job.stage_deadline = deadline_of(now, order.timeout_ms);
    out.workers.emplace_back(messages::WorkerFill{
        .update = job.id,
        .bucket = order.bucket,
        .source = std::move(order.source),
        .timeout_ms = time_of_workers(order.timeout_ms),
    });
}

bool ReplicaUpdate::add(messages::WorkerFilled answer, TurnOutput& out) {
    const std::int64_t rank = raw(answer.outcome.rank);
    const auto at = static_cast<std::size_t>(rank);
    if (!job_ || job_->id != answer.update || rank < 0 || rank >= config_.tp ||
        job_->bucket != answer.bucket || job_->has_voted[at] ||
        (job_->vote != UpdateJob::Vote::kFilling && job_->vote != UpdateJob::Vote::kFailed)) {
        return false;
    }
    take_filled(std::move(answer), out);
    return true;
}

void ReplicaUpdate::take_filled(messages::WorkerFilled answer, TurnOutput& out) {
    UpdateJob& job = *job_;
    const auto at = static_cast<std::size_t>(raw(answer.outcome.rank));
    job.has_voted[at] = true;
    job.ranks[at] = std::move(answer.outcome);
    if (job.vote != UpdateJob::Vote::kFilling) return;  // failed already: for the report only
    if (!job.ranks[at].ok) return fail_vote(job.error_of_votes(), out);
    if (!job.have_all_voted()) return;
    job.vote = UpdateJob::Vote::kOpen;
    job.stage_deadline = TimePoint::max();
    answer_order(job.bucket == 0 ? kOpened : kFilled, std::nullopt, out);
}

// The door has no more buckets: the ranks verify and vote.
void ReplicaUpdate::finish_session(
    const messages::UpdateFinish& order, TimePoint now, TurnOutput& out
) {
    if (!is_session_open(order.update)) {
        return refuse_order(
            order.update,
            kPrepared,
            wrong_order("finish", order.update, "its session is not open"),
            out
        );
    }
    UpdateJob& job = *job_;
    if (!order.label.empty()) job.label = order.label;
    if (!order.digest.empty()) job.spec.digest = order.digest;
    job.ask(UpdateJob::Vote::kStaging);
    job.stage_deadline = deadline_of(now, order.timeout_ms);
    out.workers.emplace_back(messages::WorkerFinish{.update = job.id});
}

// The retained copy is there on every rank, so this replica is prepared at once.
void ReplicaUpdate::roll_back(
    const messages::UpdateRollback& order, const WhyNot& why_not, TurnOutput& out
) {
    const auto refuse_with = [&](Error error) {
        refuse_order(order.update, kPrepared, std::move(error), out);
    };
    if (why_not) return refuse_with(wrong_order("rollback", order.update, *why_not));
    if (job_) {
        return refuse_with(wrong_order(
            "rollback", order.update, fmt::format("update {} is under way", number(job_->id))
        ));
    }
    if (!retained_ || weights_ != Weights::kWhole) {
        return refuse_with(wrong_order("rollback", order.update, "no previous version is retained")
        );
    }
    if (auto error = problem_of_epoch(order.new_epoch)) return refuse_with(*std::move(error));
    UpdateJob& job = job_.emplace(order.update, UpdateJob::Kind::kRollback, config_.tp);
    job.new_epoch = order.new_epoch;
    job.label = retained_->label;
    job.digest = retained_->digest;
    job.vote = UpdateJob::Vote::kPrepared;
    for (messages::RankOutcome& rank : job.ranks) {
        rank.ok = true;
        rank.phase = kPrepared;
    }
    answer_order(kPrepared, std::nullopt, out);
}

bool ReplicaUpdate::add(messages::WorkerStaged vote, TurnOutput& out) {
    const std::int64_t rank = raw(vote.outcome.rank);
    if (!job_ || job_->id != vote.update || rank < 0 || rank >= config_.tp ||
        !job_->is_stage_sent || job_->has_voted[static_cast<std::size_t>(rank)] ||
        job_->vote == UpdateJob::Vote::kOpen || job_->vote == UpdateJob::Vote::kFilling) {
        return false;
    }
    take_vote(std::move(vote), out);
    return true;
}

void ReplicaUpdate::take_vote(messages::WorkerStaged vote, TurnOutput& out) {
    UpdateJob& job = *job_;
    const auto at = static_cast<std::size_t>(raw(vote.outcome.rank));
    job.has_voted[at] = true;
    job.ranks[at] = std::move(vote.outcome);
    job.digests[at] = std::move(vote.digests);
    if (job.vote != UpdateJob::Vote::kStaging) return;  // failed already: for the report only
    if (!job.ranks[at].ok) return fail_vote(job.error_of_votes(), out);
    if (!job.have_all_voted()) return;
    Result<std::string> digest = job.verified_digest();
    if (!digest) return fail_vote(digest.error(), out);
    job.digest = *std::move(digest);
    job.digests.clear();  // large, and not needed again
    job.vote = UpdateJob::Vote::kPrepared;
    job.stage_deadline = TimePoint::max();
    answer_order(kPrepared, std::nullopt, out);
}

void ReplicaUpdate::fail_vote(Error error, TurnOutput& out) {
    const bool was_filling = job_->vote == UpdateJob::Vote::kFilling;
    job_->vote = UpdateJob::Vote::kFailed;
    job_->stage_deadline = TimePoint::max();
    const std::string_view filling = job_->bucket == 0 ? kOpened : kFilled;
    answer_order(was_filling ? filling : kPrepared, std::move(error), out);
}

void ReplicaUpdate::make_ready(
    const messages::UpdateReady& order,
    TimePoint now,
    std::int64_t num_started,
    const WhyNot& why_not,
    TurnOutput& out
) {
    const auto refuse_with = [&](std::string_view why) {
        refuse_order(order.update, kReady, wrong_order("ready", order.update, why), out);
    };
    if (job_ && job_->id != order.update) return refuse_with("another update is under way");
    if (job_ && (job_->stand != UpdateJob::Stand::kNotAsked || job_->end != UpdateJob::End::kNone))
        return refuse_with("ordered before");
    if (why_not) return refuse_with(*why_not);
    // A staged update and a rollback are prepared before they are made ready; a direct one after.
    if (!job_) job_.emplace(order.update, UpdateJob::Kind::kDirect, config_.tp);
    job_->kv_policy = order.kv_policy;
    job_->stand = UpdateJob::Stand::kWaiting;
    if (order.timeout_ms > 0) job_->stand_deadline = deadline_of(now, order.timeout_ms);
    if (order.kv_policy == messages::KvPolicy::kDrain) job_->outcome.num_drained = num_started;
}

void ReplicaUpdate::settle(TimePoint now, bool is_still, bool is_run_out, TurnOutput& out) {
    if (!is_asked_to_stand() || job_->stand != UpdateJob::Stand::kWaiting) return;
    if (drains() && !is_run_out) return;
    if ((drains() || overwrites()) && !is_still) return;
    job_->stand = UpdateJob::Stand::kReady;
    if (overwrites()) job_->standing_since = now;
    answer_order(kReady, std::nullopt, out);
}

// The door is told in time what was waited for, and drops the update.
void ReplicaUpdate::end_late(TimePoint now, const std::string& what_runs, TurnOutput& out) {
    if (!job_) return;
    if (is_asked_to_stand() && job_->stand == UpdateJob::Stand::kWaiting &&
        now >= job_->stand_deadline) {
        job_->stand = UpdateJob::Stand::kLate;
        answer_order(
            kReady, make_error(ErrorCode::kDeadlineExceeded, "phase ready: {}", what_runs), out
        );
    }
    if (now >= job_->stage_deadline) {
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

std::optional<TimePoint> ReplicaUpdate::next_deadline() const {
    if (!job_) return std::nullopt;
    TimePoint first = job_->stage_deadline;
    if (job_->stand == UpdateJob::Stand::kWaiting) first = std::min(first, job_->stand_deadline);
    if (first == TimePoint::max()) return std::nullopt;
    return first;
}

// Which ranks have not answered the commit or the drop under way.
void ReplicaUpdate::tell_who_is_awaited(TurnOutput& out) const {
    out.tokenizer.emplace_back(messages::UpdateWaits{
        .update = job_->id,
        .replica = config_.replica,
        .ranks = job_->ranks_without_answer(),
    });
}

bool ReplicaUpdate::may_commit(const messages::UpdateCommit& order, TurnOutput& out) const {
    const auto refuse_with = [&](std::string_view why) {
        refuse_order(order.update, kCommitted, wrong_order("commit", order.update, why), out);
        return false;
    };
    if (!job_ || job_->id != order.update) return refuse_with("no such update");
    if (job_->end != UpdateJob::End::kNone) return refuse_with("ended before");
    if (job_->vote != UpdateJob::Vote::kPrepared) return refuse_with("not every rank is prepared");
    if (job_->stand != UpdateJob::Stand::kReady) return refuse_with("not standing ready");
    return true;
}

void ReplicaUpdate::commit(TimePoint now, const KvCounts& counts, TurnOutput& out) {
    UpdateJob& job = *job_;
    job.end = UpdateJob::End::kCommitting;
    job.commit_ordered = now;
    job.outcome.num_kept = counts.num_kept;
    job.outcome.num_recomputed = counts.num_recomputed;
    job.outcome.num_aborted = counts.num_aborted;
    out.workers.emplace_back(messages::WorkerCommit{
        .update = job.id,
        .epoch = job.new_epoch,
        .rollback = job.kind == UpdateJob::Kind::kRollback,
    });
    swap_version();
    tell_who_is_awaited(out);
}

// The next plan runs under the new version.
void ReplicaUpdate::swap_version() {
    const UpdateJob& job = *job_;
    Version old = std::exchange(
        version_,
        Version{
            .epoch = job.new_epoch,
            .label = job.label,
            .digest = job.digest,
            .serial = version_.serial + 1,
        }
    );
    // A direct update has overwritten the old copy; a torn one is no version to go back to.
    retained_.reset();
    if (job.kind != UpdateJob::Kind::kDirect && weights_ == Weights::kWhole)
        retained_ = std::move(old);
    weights_ = Weights::kWhole;
}

bool ReplicaUpdate::add(const messages::WorkerCommitted& answer, TimePoint now, TurnOutput& out) {
    const std::int64_t rank = raw(answer.rank);
    if (!job_ || job_->id != answer.update || job_->end != UpdateJob::End::kCommitting ||
        rank < 0 || rank >= config_.tp || job_->has_answered[static_cast<std::size_t>(rank)]) {
        return false;
    }
    take_committed(answer, now, out);
    return true;
}

void ReplicaUpdate::take_committed(
    const messages::WorkerCommitted& answer, TimePoint now, TurnOutput& out
) {
    UpdateJob& job = *job_;
    if (answer.epoch != job.new_epoch) {
        out.fatal = make_error(
            ErrorCode::kInternal,
            "rank {} committed epoch {}, ordered was {}",
            raw(answer.rank),
            raw(answer.epoch),
            raw(job.new_epoch)
        );
        return;
    }
    const auto at = static_cast<std::size_t>(raw(answer.rank));
    job.has_answered[at] = true;
    job.ranks[at].ok = true;
    job.ranks[at].phase = kCommitted;
    job.ranks[at].commit_s = static_cast<double>(answer.elapsed_us) * 1e-6;
    if (!job.have_all_answered()) return tell_who_is_awaited(out);
    job.record_commit(now);
    answer_order(kCommitted, std::nullopt, out);
    job_.reset();
}

void ReplicaUpdate::drop(const messages::UpdateDrop& order, TurnOutput& out) {
    // Whatever came of it here: another replica was overwritten, or has not committed.
    if (order.torn) weights_ = Weights::kTorn;
    if (!job_ || job_->id != order.update) {  // it was refused here, or never came
        messages::UpdatePart part = part_of(order.update, kDropped);
        part.ok = true;
        part.message = order.reason;
        out.tokenizer.emplace_back(std::move(part));
        return;
    }
    if (job_->end != UpdateJob::End::kNone) {
        return refuse_order(
            order.update, kDropped, wrong_order("drop", order.update, "ended before"), out
        );
    }
    UpdateJob& job = *job_;
    job.end = UpdateJob::End::kDropping;
    job.drop_reason = order.reason;
    job.stage_deadline = TimePoint::max();
    if (job.may_be_torn()) weights_ = Weights::kTorn;
    if (!job.is_stage_sent) return end_dropped(out);
    out.workers.emplace_back(messages::WorkerDrop{.update = job.id});
    tell_who_is_awaited(out);
}

bool ReplicaUpdate::add(const messages::WorkerDropped& answer, TurnOutput& out) {
    const std::int64_t rank = raw(answer.rank);
    if (!job_ || job_->id != answer.update || job_->end != UpdateJob::End::kDropping || rank < 0 ||
        rank >= config_.tp || job_->has_answered[static_cast<std::size_t>(rank)]) {
        return false;
    }
    take_dropped(answer, out);
    return true;
}

void ReplicaUpdate::take_dropped(const messages::WorkerDropped& answer, TurnOutput& out) {
    const auto at = static_cast<std::size_t>(raw(answer.rank));
    job_->has_answered[at] = true;
    // A rank that failed keeps the phase it failed in.
    if (job_->ranks[at].ok || !job_->has_voted[at]) job_->ranks[at].phase = kDropped;
    if (!job_->have_all_answered()) return tell_who_is_awaited(out);
    end_dropped(out);
}

std::string_view ReplicaUpdate::state() const {
    if (weights_ == Weights::kTorn) return "torn";
    const bool is_staged =
        job_ && job_->vote == UpdateJob::Vote::kPrepared && job_->end == UpdateJob::End::kNone;
    if (is_staged) return "staged";
    return weights_ == Weights::kAwaited ? "awaiting_weights" : "serving";
}

messages::UpdatePart ReplicaUpdate::part_of(messages::UpdateId update, std::string_view phase)
    const {
    messages::UpdatePart part;
    part.update = update;
    part.replica = config_.replica;
    part.phase = phase;
    part.state = state();
    part.epoch = version_.epoch;
    part.label = version_.label;
    part.digest = version_.digest;
    part.outcome.replica = config_.replica;
    return part;
}

// Answers an order of the update under way.
void ReplicaUpdate::answer_order(
    std::string_view phase, std::optional<Error> error, TurnOutput& out
) const {
    messages::UpdatePart part = part_of(job_->id, phase);
    part.ok = !error;
    if (error) {
        part.code = name_of(error->code);
        part.message = std::move(error->message);
    } else if (phase == kPrepared) {
        part.epoch = job_->new_epoch;
        part.label = job_->label;
        part.digest = job_->digest;
    } else if (phase == kDropped) {
        part.message = job_->drop_reason;
    }
    part.outcome = job_->full_outcome();
    part.outcome.replica = config_.replica;
    out.tokenizer.emplace_back(std::move(part));
}

void ReplicaUpdate::refuse_order(
    messages::UpdateId update, std::string_view phase, Error error, TurnOutput& out
) const {
    messages::UpdatePart part = part_of(update, phase);
    part.code = name_of(error.code);
    part.message = std::move(error.message);
    out.tokenizer.emplace_back(std::move(part));
}

}  // namespace pitstop::scheduler
