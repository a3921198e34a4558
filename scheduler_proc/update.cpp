// This replica's part of a weight update (design section 5; messages/weights.h has the protocol).
//
// The commit is put between two plans on every worker's socket: steps planned before it run under
// the old version, steps planned after it under the new one, on every rank alike (P1). It is
// refused unless every rank of this replica has voted for it and the replica stands as asked (P2).
#include "base/check.h"
#include "scheduler_proc/scheduler.h"

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

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

std::uint64_t number(UpdateId id) { return static_cast<std::uint64_t>(id); }

Error wrong_order(std::string_view order, UpdateId id, std::string_view why) {
    return make_error(
        ErrorCode::kFailedPrecondition, "{} of update {}: {}", order, number(id), why
    );
}

// Every problem of every rank that voted no, as far as one message goes.
Error no_votes(const std::vector<RankOutcome>& ranks, const std::vector<bool>& has_voted) {
    Error error{ErrorCode::kInternal, ""};
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        const RankOutcome& rank = ranks[i];
        if (!has_voted[i] || rank.ok) continue;
        if (error.message.empty()) error.code = error_code_named(rank.code);
        error.message += fmt::format(
            "{}rank {} in phase {}: {}",
            error.message.empty() ? "" : "; ",
            i,
            rank.phase,
            rank.problems.empty() ? std::string("no reason given")
                                  : fmt::format("{}", fmt::join(rank.problems, "; "))
        );
    }
    return error;
}

// A rank gives up a little before its scheduler does, so that it says itself what it waited for.
std::int64_t time_of_workers(std::int64_t timeout_ms) {
    constexpr std::int64_t kHeadStartMs = 500;
    return timeout_ms - std::min(timeout_ms / 10, kHeadStartMs);
}

}  // namespace

void Scheduler::stage(UpdateStage order, TurnOutput& out) {
    const bool is_session = order.spec.source.kind == SourceKind::kBuckets;
    const auto refuse_with = [&](Error error) {
        refuse_update(order.update, is_session ? kOpened : kPrepared, std::move(error), out);
    };
    const bool is_direct = order.spec.mode == UpdateMode::kDirect;
    if (!is_ready()) return refuse_with(wrong_order("stage", order.update, "still loading"));
    if (const auto problem = invalid(order.spec)) {
        return refuse_with({ErrorCode::kInvalidArgument, *problem});
    }
    if (order.new_epoch <= version_.epoch) {
        return refuse_with(make_error(
            ErrorCode::kFailedPrecondition,
            "epoch {} is not newer than the one that serves, {}",
            raw(order.new_epoch),
            raw(version_.epoch)
        ));
    }
    if (!memory_.is_resident(MemoryTag::kWeights)) {
        return refuse_with(wrong_order("stage", order.update, memory_.what_is_missing()));
    }
    if (weights_ != Weights::kWhole && order.spec.partial) {
        return refuse_with(wrong_order(
            "stage", order.update, "torn or without weights; only a complete update mends it"
        ));
    }
    if (is_direct) {
        // It overwrites what serves: only after this replica has been told to stand still.
        if (!job_ || job_->id != order.update || job_->kind != UpdateJob::Kind::kDirect ||
            job_->stand != UpdateJob::Stand::kReady || job_->is_stage_sent ||
            job_->end != UpdateJob::End::kNone) {
            return refuse_with(
                wrong_order("direct stage", order.update, "not standing still for it")
            );
        }
    } else if (job_) {
        return refuse_with(wrong_order(
            "stage", order.update, fmt::format("update {} is under way", number(job_->id))
        ));
    } else {
        job_.emplace(order.update, UpdateJob::Kind::kStaged, config_.tp);
    }
    UpdateJob& job = *job_;
    job.kv_policy = is_direct ? job.kv_policy : order.spec.kv_policy;
    job.new_epoch = order.new_epoch;
    job.label = order.spec.label.empty() ? version_.label : order.spec.label;
    job.ask(is_session ? UpdateJob::Vote::kFilling : UpdateJob::Vote::kStaging);
    job.stage_deadline = deadline_of(order.timeout_ms);
    job.is_stage_sent = true;
    for (RankOutcome& rank : job.ranks) rank.phase = "stage";
    job.spec = std::move(order.spec);
    retained_.reset();  // its copy is what the stage overwrites
    out.workers.emplace_back(WorkerStage{
        .update = job.id,
        .spec = job.spec,
        .timeout_ms = time_of_workers(order.timeout_ms),
    });
    job.spec.source.payloads.clear();  // large, and not needed again
}

void Scheduler::fill(UpdateFill order, TurnOutput& out) {
    const auto refuse_with = [&](Error error) {
        refuse_update(order.update, kFilled, std::move(error), out);
    };
    if (const auto problem = invalid(order.source))
        return refuse_with({ErrorCode::kInvalidArgument, *problem});
    if (!job_ || job_->id != order.update || job_->vote != UpdateJob::Vote::kOpen ||
        job_->end != UpdateJob::End::kNone) {
        return refuse_with(wrong_order("fill", order.update, "its session is not open"));
    }
    UpdateJob& job = *job_;
    job.ask(UpdateJob::Vote::kFilling);
    job.bucket = order.bucket;
    job.stage_deadline = deadline_of(order.timeout_ms);
    out.workers.emplace_back(WorkerFill{
        .update = job.id,
        .bucket = order.bucket,
        .source = std::move(order.source),
        .timeout_ms = time_of_workers(order.timeout_ms),
    });
}

void Scheduler::filled(WorkerFilled answer, TurnOutput& out) {
    const std::int64_t rank = raw(answer.outcome.rank);
    const auto at = static_cast<std::size_t>(rank);
    if (!job_ || job_->id != answer.update || rank < 0 || rank >= config_.tp ||
        job_->bucket != answer.bucket || job_->has_voted[at] ||
        (job_->vote != UpdateJob::Vote::kFilling && job_->vote != UpdateJob::Vote::kFailed)) {
        ++num_late_;
        return;
    }
    UpdateJob& job = *job_;
    job.has_voted[at] = true;
    job.ranks[at] = std::move(answer.outcome);
    if (job.vote != UpdateJob::Vote::kFilling) return;  // failed already: for the report only
    if (!job.ranks[at].ok) return fail_vote(no_votes(job.ranks, job.has_voted), out);
    if (!job.have_all_voted()) return;
    job.vote = UpdateJob::Vote::kOpen;
    job.stage_deadline = TimePoint::max();
    answer_update(job.bucket == 0 ? kOpened : kFilled, std::nullopt, out);
}

// The door has no more buckets: the ranks verify and vote.
void Scheduler::finish_session(const UpdateFinish& order, TurnOutput& out) {
    if (!job_ || job_->id != order.update || job_->vote != UpdateJob::Vote::kOpen ||
        job_->end != UpdateJob::End::kNone) {
        return refuse_update(
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
    job.stage_deadline = deadline_of(order.timeout_ms);
    out.workers.emplace_back(WorkerFinish{.update = job.id});
}

// The retained copy is there on every rank, so this replica is prepared at once.
void Scheduler::roll_back(const UpdateRollback& order, TurnOutput& out) {
    const auto refuse_with = [&](Error error) {
        refuse_update(order.update, kPrepared, std::move(error), out);
    };
    if (!is_ready()) return refuse_with(wrong_order("rollback", order.update, "still loading"));
    if (job_) {
        return refuse_with(wrong_order(
            "rollback", order.update, fmt::format("update {} is under way", number(job_->id))
        ));
    }
    if (!retained_ || weights_ != Weights::kWhole) {
        return refuse_with(wrong_order("rollback", order.update, "no previous version is retained")
        );
    }
    if (order.new_epoch <= version_.epoch) {
        return refuse_with(make_error(
            ErrorCode::kFailedPrecondition,
            "epoch {} is not newer than the one that serves, {}",
            raw(order.new_epoch),
            raw(version_.epoch)
        ));
    }
    UpdateJob& job = job_.emplace(order.update, UpdateJob::Kind::kRollback, config_.tp);
    job.new_epoch = order.new_epoch;
    job.label = retained_->label;
    job.digest = retained_->digest;
    job.vote = UpdateJob::Vote::kPrepared;
    for (RankOutcome& rank : job.ranks) {
        rank.ok = true;
        rank.phase = kPrepared;
    }
    answer_update(kPrepared, std::nullopt, out);
}

void Scheduler::staged(WorkerStaged vote, TurnOutput& out) {
    const std::int64_t rank = raw(vote.outcome.rank);
    if (!job_ || job_->id != vote.update || rank < 0 || rank >= config_.tp ||
        !job_->is_stage_sent || job_->has_voted[static_cast<std::size_t>(rank)] ||
        job_->vote == UpdateJob::Vote::kOpen || job_->vote == UpdateJob::Vote::kFilling) {
        ++num_late_;
        return;
    }
    UpdateJob& job = *job_;
    const auto at = static_cast<std::size_t>(rank);
    job.has_voted[at] = true;
    job.ranks[at] = std::move(vote.outcome);
    job.digests[at] = std::move(vote.digests);
    if (job.vote != UpdateJob::Vote::kStaging) return;  // failed already: for the report only
    if (!job.ranks[at].ok) return fail_vote(no_votes(job.ranks, job.has_voted), out);
    if (!job.have_all_voted()) return;
    Result<std::string> digest = job.verified_digest();
    if (!digest) return fail_vote(digest.error(), out);
    job.digest = *std::move(digest);
    job.digests.clear();  // large, and not needed again
    job.vote = UpdateJob::Vote::kPrepared;
    job.stage_deadline = TimePoint::max();
    answer_update(kPrepared, std::nullopt, out);
}

void Scheduler::fail_vote(Error error, TurnOutput& out) {
    const bool was_filling = job_->vote == UpdateJob::Vote::kFilling;
    job_->vote = UpdateJob::Vote::kFailed;
    job_->stage_deadline = TimePoint::max();
    const std::string_view filling = job_->bucket == 0 ? kOpened : kFilled;
    answer_update(was_filling ? filling : kPrepared, std::move(error), out);
}

void Scheduler::make_ready(const UpdateReady& order, TurnOutput& out) {
    const auto refuse_with = [&](std::string_view why) {
        refuse_update(order.update, kReady, wrong_order("ready", order.update, why), out);
    };
    if (!is_ready()) return refuse_with("still loading");
    if (job_ && job_->id != order.update) return refuse_with("another update is under way");
    if (job_ && (job_->stand != UpdateJob::Stand::kNotAsked || job_->end != UpdateJob::End::kNone))
        return refuse_with("ordered before");
    if (order.kv_policy == KvPolicy::kDrain && pause_ && pause_->mode != PauseMode::kWait &&
        has_started_requests()) {
        return refuse_with(fmt::format(
            "paused with {} running and {} waiting requests, which cannot run out (drain)",
            running_.size(),
            waiting_.size()
        ));
    }
    if (order.kv_policy == KvPolicy::kDrain && why_idle() && has_started_requests()) {
        return refuse_with(
            fmt::format("running requests cannot run out (drain): {}", why_idle()->message)
        );
    }
    if (!memory_.is_resident(MemoryTag::kWeights)) return refuse_with(memory_.what_is_missing());
    // A staged update and a rollback are prepared before they are made ready; a direct one after.
    if (!job_) job_.emplace(order.update, UpdateJob::Kind::kDirect, config_.tp);
    job_->kv_policy = order.kv_policy;
    job_->stand = UpdateJob::Stand::kWaiting;
    if (order.timeout_ms > 0) job_->stand_deadline = deadline_of(order.timeout_ms);
    if (order.kv_policy == KvPolicy::kDrain) {
        job_->outcome.num_drained =
            static_cast<std::int64_t>(std::ranges::count_if(requests_, [](const auto& entry) {
                return entry.second.was_admitted;
            }));
    }
}

// Answers `ready` once the replica stands as the update needs it.
void Scheduler::settle_update(TurnOutput& out) {
    if (!job_ || job_->stand != UpdateJob::Stand::kWaiting || job_->end != UpdateJob::End::kNone)
        return;
    UpdateJob& job = *job_;
    const bool drains = job.kv_policy == KvPolicy::kDrain;
    if (drains && has_started_requests()) return;
    if ((drains || job.kind == UpdateJob::Kind::kDirect) && !in_flight_.empty()) return;
    job.stand = UpdateJob::Stand::kReady;
    if (job.kind == UpdateJob::Kind::kDirect) job.standing_since = now_;
    answer_update(kReady, std::nullopt, out);
}

// The door is told in time what this replica waited for, and drops the update.
void Scheduler::end_late_stand(TurnOutput& out) {
    if (!job_ || job_->stand != UpdateJob::Stand::kWaiting || job_->end != UpdateJob::End::kNone ||
        now_ < job_->stand_deadline) {
        return;
    }
    job_->stand = UpdateJob::Stand::kLate;
    answer_update(
        kReady,
        make_error(
            ErrorCode::kDeadlineExceeded,
            "phase ready: {}; {} requests still run",
            step_in_flight(),
            running_.size()
        ),
        out
    );
}

// Which ranks have not answered the commit or the drop under way.
void Scheduler::say_who_waits(TurnOutput& out) const {
    UpdateWaits waits{.update = job_->id, .replica = config_.replica};
    for (std::size_t rank = 0; rank < job_->has_answered.size(); ++rank) {
        if (!job_->has_answered[rank]) waits.ranks.push_back(static_cast<Rank>(rank));
    }
    out.tokenizer.emplace_back(std::move(waits));
}

void Scheduler::commit(const UpdateCommit& order, TurnOutput& out) {
    const auto refuse_with = [&](std::string_view why) {
        refuse_update(order.update, kCommitted, wrong_order("commit", order.update, why), out);
    };
    if (!job_ || job_->id != order.update) return refuse_with("no such update");
    if (job_->end != UpdateJob::End::kNone) return refuse_with("ended before");
    if (job_->vote != UpdateJob::Vote::kPrepared) return refuse_with("not every rank is prepared");
    if (job_->stand != UpdateJob::Stand::kReady) return refuse_with("not standing ready");
    UpdateJob& job = *job_;
    job.end = UpdateJob::End::kCommitting;
    job.commit_ordered = now_;
    apply_kv_policy(out);
    out.workers.emplace_back(WorkerCommit{
        .update = job.id,
        .epoch = job.new_epoch,
        .rollback = job.kind == UpdateJob::Kind::kRollback,
    });
    swap_version();
    say_who_waits(out);
}

void Scheduler::apply_kv_policy(TurnOutput& out) {
    UpdateJob& job = *job_;
    switch (job.kv_policy) {
        case KvPolicy::kKeep:
            job.outcome.num_kept = static_cast<std::int64_t>(running_.size());
            break;
        case KvPolicy::kRecompute:
            job.outcome.num_recomputed = retract_all();
            // Their KV is the new version's, however much lag they would tolerate in a cache.
            for (auto& [key, request] : requests_) {
                if (request.was_admitted) request.kv_floor = job.new_epoch;
            }
            break;
        case KvPolicy::kDrain:
            CHECK(running_.empty());
            break;
        case KvPolicy::kAbort:
            job.outcome.num_aborted = abort_all(
                /*also_new=*/false,
                fmt::format("the weights were updated to epoch {} (abort)", raw(job.new_epoch)),
                out
            );
            break;
    }
}

// The next plan runs under the new version.
void Scheduler::swap_version() {
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

void Scheduler::committed(const WorkerCommitted& answer, TurnOutput& out) {
    const std::int64_t rank = raw(answer.rank);
    if (!job_ || job_->id != answer.update || job_->end != UpdateJob::End::kCommitting ||
        rank < 0 || rank >= config_.tp || job_->has_answered[static_cast<std::size_t>(rank)]) {
        ++num_late_;
        return;
    }
    UpdateJob& job = *job_;
    if (answer.epoch != job.new_epoch) {
        out.fatal = make_error(
            ErrorCode::kInternal,
            "rank {} committed epoch {}, ordered was {}",
            rank,
            raw(answer.epoch),
            raw(job.new_epoch)
        );
        return;
    }
    const auto at = static_cast<std::size_t>(rank);
    job.has_answered[at] = true;
    job.ranks[at].ok = true;
    job.ranks[at].phase = kCommitted;
    job.ranks[at].commit_s = static_cast<double>(answer.elapsed_us) * 1e-6;
    if (!job.have_all_answered()) return say_who_waits(out);
    ReplicaOutcome& outcome = job.outcome;
    outcome.commit_s = seconds(now_ - job.commit_ordered);
    for (const RankOutcome& each : job.ranks) {
        outcome.pause_s = std::max(outcome.pause_s, each.commit_s);
    }
    if (job.standing_since) outcome.pause_s += seconds(job.commit_ordered - *job.standing_since);
    answer_update(kCommitted, std::nullopt, out);
    job_.reset();
}

void Scheduler::drop(const UpdateDrop& order, TurnOutput& out) {
    // Whatever came of it here: another replica was overwritten, or has not committed.
    if (order.torn) weights_ = Weights::kTorn;
    if (!job_ || job_->id != order.update) {  // it was refused here, or never came
        UpdatePart part = update_part(order.update, kDropped);
        part.ok = true;
        part.message = order.reason;
        out.tokenizer.emplace_back(std::move(part));
        return;
    }
    if (job_->end != UpdateJob::End::kNone) {
        return refuse_update(
            order.update, kDropped, wrong_order("drop", order.update, "ended before"), out
        );
    }
    UpdateJob& job = *job_;
    job.end = UpdateJob::End::kDropping;
    job.drop_reason = order.reason;
    job.stage_deadline = TimePoint::max();
    if (job.may_be_torn()) weights_ = Weights::kTorn;
    if (!job.is_stage_sent) return finish_drop(out);
    out.workers.emplace_back(WorkerDrop{.update = job.id});
    say_who_waits(out);
}

void Scheduler::dropped(const WorkerDropped& answer, TurnOutput& out) {
    const std::int64_t rank = raw(answer.rank);
    if (!job_ || job_->id != answer.update || job_->end != UpdateJob::End::kDropping || rank < 0 ||
        rank >= config_.tp || job_->has_answered[static_cast<std::size_t>(rank)]) {
        ++num_late_;
        return;
    }
    const auto at = static_cast<std::size_t>(rank);
    job_->has_answered[at] = true;
    // A rank that failed keeps the phase it failed in.
    if (job_->ranks[at].ok || !job_->has_voted[at]) job_->ranks[at].phase = kDropped;
    if (!job_->have_all_answered()) return say_who_waits(out);
    finish_drop(out);
}

void Scheduler::finish_drop(TurnOutput& out) {
    answer_update(kDropped, std::nullopt, out);
    job_.reset();
}

std::string_view Scheduler::update_state() const {
    if (weights_ == Weights::kTorn) return "torn";
    const bool is_staged =
        job_ && job_->vote == UpdateJob::Vote::kPrepared && job_->end == UpdateJob::End::kNone;
    if (is_staged) return "staged";
    return weights_ == Weights::kAwaited ? "awaiting_weights" : "serving";
}

UpdatePart Scheduler::update_part(UpdateId update, std::string_view phase) const {
    UpdatePart part;
    part.update = update;
    part.replica = config_.replica;
    part.phase = phase;
    part.state = update_state();
    part.epoch = version_.epoch;
    part.label = version_.label;
    part.digest = version_.digest;
    part.outcome.replica = config_.replica;
    return part;
}

// Answers an order of the update under way.
void Scheduler::answer_update(std::string_view phase, std::optional<Error> error, TurnOutput& out)
    const {
    UpdatePart part = update_part(job_->id, phase);
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

void Scheduler::refuse_update(UpdateId update, std::string_view phase, Error error, TurnOutput& out)
    const {
    UpdatePart part = update_part(update, phase);
    part.code = name_of(error.code);
    part.message = std::move(error.message);
    out.tokenizer.emplace_back(std::move(part));
}

}  // namespace pitstop::scheduler
