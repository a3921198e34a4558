#include "scheduler_proc/replica_update.h"

#include "base/check.h"
#include "messages/source_reach.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace pitstop::scheduler {
namespace {

std::uint64_t number(messages::UpdateId id) { return static_cast<std::uint64_t>(id); }

// Staging a session only opens it: its buckets transfer the bytes.
messages::UpdateOrder order_of(const messages::UpdateStage& order) {
    return order.spec.source.kind == messages::SourceKind::kBuckets ? messages::UpdateOrder::kOpen
                                                                    : messages::UpdateOrder::kStage;
}

// A rank gives up a little before its scheduler, so that it can report what it waited for.
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

void ReplicaUpdate::ask(messages::UpdateOrder order, TimePoint deadline) {
    job_->round.ask(order);
    job_->deadline = deadline;
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

// A rank of another machine cannot read memory of this one.
std::optional<Error> ReplicaUpdate::problem_of_reach(const messages::WeightSource& source) const {
    const std::string_view memory = messages::shared_memory_of(source);
    if (config_.nodes == 1 || memory.empty()) return std::nullopt;
    return make_error(
        ErrorCode::kUnsupported,
        "a source of {} uses memory of one machine, but replica {} spans {} (--nodes); accepted "
        "are {}",
        memory,
        raw(config_.replica),
        config_.nodes,
        messages::kSourcesThatTravel
    );
}

std::optional<Error> ReplicaUpdate::problem_of_stage(
    const messages::UpdateStage& order, const WhyNot& why_not
) const {
    if (why_not) return wrong_order("stage", order.update, *why_not);
    if (const auto problem = messages::invalid(order.spec))
        return Error{ErrorCode::kInvalidArgument, *problem};
    if (auto error = problem_of_reach(order.spec.source)) return error;
    if (order.spec.adapter.empty()) {  // the owner of the adapters checks their versions
        if (auto error = problem_of_epoch(order.new_epoch)) return error;
    }
    if (!has_weights() && order.spec.partial) {
        return wrong_order(
            "stage", order.update, "torn or without weights; only a complete update repairs it"
        );
    }
    if (order.spec.mode == messages::UpdateMode::kDirect) {
        // A direct update overwrites what serves: allowed only after this replica was told to stop.
        if (!may(order.update, order_of(order)) || job_->phase() != messages::UpdatePhase::kStopped)
            return wrong_order("direct stage", order.update, "the replica has not stopped for it");
    } else if (job_) {
        return wrong_order(
            "stage", order.update, fmt::format("update {} is under way", number(job_->id))
        );
    }
    return std::nullopt;
}

void ReplicaUpdate::refuse_stage(const messages::UpdateStage& order, Error error, TurnOutput& out)
    const {
    refuse_order(order.update, order_of(order), std::move(error), out);
}

bool ReplicaUpdate::stage(
    messages::UpdateStage order, TimePoint now, const WhyNot& why_not, TurnOutput& out
) {
    const messages::UpdateOrder asked = order_of(order);
    if (auto error = problem_of_stage(order, why_not)) {
        refuse_order(order.update, asked, *std::move(error), out);
        return false;
    }
    if (!job_) {
        job_.emplace(order.update, UpdateJob::Kind::kStaged, config_.tp);
        job_->kv_policy = order.spec.kv_policy;
    }
    ask(asked, deadline_of(now, order.timeout_ms));
    UpdateJob& job = *job_;
    job.new_epoch = order.new_epoch;
    job.label = order.spec.label;
    for (messages::RankOutcome& rank : job.ranks) rank.phase = messages::UpdatePhase::kStaging;
    job.spec = std::move(order.spec);
    // The stage overwrites the retained copy; an adapter has memory of its own.
    if (!job.is_of_adapter()) retained_.reset();
    messages::WorkerStage to_workers{
        .update = job.id,
        .spec = job.spec,
        .timeout_ms = time_of_workers(order.timeout_ms),
    };
    // This also holds without weights: a rank may have kept its own when another rank lost them.
    job.is_on_loan = lends_ && job.kind == UpdateJob::Kind::kStaged && !job.is_of_adapter();
    if (job.is_on_loan) {
        job.held = std::move(to_workers);
    } else {
        out.workers.emplace_back(std::move(to_workers));
    }
    job.spec.source.payloads.clear();  // large, and not needed again
    return true;
}

void ReplicaUpdate::record_loan(std::int64_t num_retracted, std::int64_t num_drained) {
    job_->num_retracted = num_retracted;
    job_->outcome.num_drained = num_drained;
}

void ReplicaUpdate::start_on_loan(TimePoint now, TurnOutput& out) {
    CHECK(wants_loan());
    if (!job_->standing_since) job_->standing_since = now;
    out.workers.emplace_back(*std::exchange(job_->held, std::nullopt));
}

void ReplicaUpdate::end_loan(TimePoint now, TurnOutput& out) {
    CHECK(awaits_return());
    job_->record_return(now);
    end(messages::UpdateOrder::kCommit, out);
}

void ReplicaUpdate::refuse_loan(Error error, TurnOutput& out) {
    if (wants_loan()) fail(job_->round.order(), std::move(error), out);
}

// Time between the vote and the commit does not belong to the stage.
void ReplicaUpdate::record_steps(const StepTimes::Watched& steps) {
    if (!job_ || job_->phase() >= messages::UpdatePhase::kPrepared) return;
    messages::ReplicaOutcome& outcome = job_->outcome;
    outcome.num_steps = steps.num;
    if (steps.num > 0) outcome.step_s = seconds(steps.sum) / static_cast<double>(steps.num);
    outcome.step_s_before = seconds(steps.mean_before);
    outcome.gap_s = seconds(steps.longest);
}

void ReplicaUpdate::fill(messages::UpdateFill order, TimePoint now, TurnOutput& out) {
    const auto refuse_with = [&](Error error) {
        refuse_order(order.update, messages::UpdateOrder::kFill, std::move(error), out);
    };
    if (const auto problem = messages::invalid(order.source))
        return refuse_with({ErrorCode::kInvalidArgument, *problem});
    if (auto error = problem_of_reach(order.source)) return refuse_with(*std::move(error));
    if (!may(order.update, messages::UpdateOrder::kFill))
        return refuse_with(wrong_order("fill", order.update, "its session is not open"));
    ask(messages::UpdateOrder::kFill, deadline_of(now, order.timeout_ms));
    job_->bucket = order.bucket;
    out.workers.emplace_back(messages::WorkerFill{
        .update = order.update,
        .bucket = order.bucket,
        .source = std::move(order.source),
        .timeout_ms = time_of_workers(order.timeout_ms),
    });
}

messages::UpdateRound::Progress ReplicaUpdate::record_outcome(messages::RankOutcome outcome) {
    const auto at = static_cast<std::size_t>(raw(outcome.rank));
    job_->ranks[at] = std::move(outcome);
    return job_->round.record_answer(
        at,
        job_->ranks[at].ok ? messages::UpdateRound::Answer::kDone
                           : messages::UpdateRound::Answer::kFailed
    );
}

bool ReplicaUpdate::handle_filled(messages::WorkerFilled answer, TurnOutput& out) {
    const messages::UpdateOrder order =
        answer.bucket == 0 ? messages::UpdateOrder::kOpen : messages::UpdateOrder::kFill;
    if (!awaits(answer.update, order, answer.outcome.rank) || job_->bucket != answer.bucket)
        return false;
    switch (record_outcome(std::move(answer.outcome))) {
        case messages::UpdateRound::Progress::kGoesOn:
            break;
        case messages::UpdateRound::Progress::kFailed:
            fail(order, job_->error_of_votes(), out);
            break;
        case messages::UpdateRound::Progress::kDone:
            job_->deadline = TimePoint::max();
            answer_order(order, std::nullopt, out);
            break;
    }
    return true;
}

// The door sends no more buckets: the ranks verify and vote.
void ReplicaUpdate::finish_session(
    const messages::UpdateFinish& order, TimePoint now, TurnOutput& out
) {
    if (!may(order.update, messages::UpdateOrder::kFill)) {
        return refuse_order(
            order.update,
            messages::UpdateOrder::kStage,
            wrong_order("finish", order.update, "its session is not open"),
            out
        );
    }
    UpdateJob& job = *job_;
    if (!order.label.empty()) job.label = order.label;
    if (!order.digest.empty()) job.spec.digest = order.digest;
    ask(messages::UpdateOrder::kStage, deadline_of(now, order.timeout_ms));
    out.workers.emplace_back(messages::WorkerFinish{.update = job.id});
}

// Every rank has the retained copy, so this replica is prepared at once.
void ReplicaUpdate::roll_back(
    const messages::UpdateRollback& order, const WhyNot& why_not, TurnOutput& out
) {
    const auto refuse_with = [&](Error error) {
        refuse_order(order.update, messages::UpdateOrder::kStage, std::move(error), out);
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
    for (messages::RankOutcome& rank : job.ranks) {
        rank.ok = true;
        rank.phase = messages::UpdatePhase::kPrepared;
    }
    ask(messages::UpdateOrder::kStage, TimePoint::max());
    job.round.finish();
    answer_order(messages::UpdateOrder::kStage, std::nullopt, out);
}

bool ReplicaUpdate::handle_vote(messages::WorkerStaged vote, TurnOutput& out) {
    if (!awaits(vote.update, messages::UpdateOrder::kStage, vote.outcome.rank)) return false;
    UpdateJob& job = *job_;
    job.digests[static_cast<std::size_t>(raw(vote.outcome.rank))] = std::move(vote.digests);
    job.adapter_config_digest = std::move(vote.adapter_config_digest);
    job.adapter_bytes = std::max(job.adapter_bytes, vote.adapter_bytes);
    switch (record_outcome(std::move(vote.outcome))) {
        case messages::UpdateRound::Progress::kGoesOn:
            return true;
        case messages::UpdateRound::Progress::kFailed:
            fail(messages::UpdateOrder::kStage, job.error_of_votes(), out);
            return true;
        case messages::UpdateRound::Progress::kDone:
            break;
    }
    Result<std::string> digest = job.verified_digest();
    if (!digest) {
        fail(messages::UpdateOrder::kStage, digest.error(), out);
        return true;
    }
    job.digest = *std::move(digest);
    job.digests.clear();  // large, and not needed again
    job.deadline = TimePoint::max();
    answer_order(messages::UpdateOrder::kStage, std::nullopt, out);
    return true;
}

// Only a drop can follow.
void ReplicaUpdate::fail(messages::UpdateOrder order, Error error, TurnOutput& out) {
    job_->round.fail();
    job_->deadline = TimePoint::max();
    answer_order(order, std::move(error), out);
}

void ReplicaUpdate::make_ready(
    const messages::UpdateReady& order,
    TimePoint now,
    std::int64_t num_started,
    const WhyNot& why_not,
    TurnOutput& out
) {
    const auto refuse_with = [&](std::string_view why) {
        refuse_order(
            order.update,
            messages::UpdateOrder::kReady,
            wrong_order("ready", order.update, why),
            out
        );
    };
    if (job_ && job_->id != order.update) return refuse_with("another update is under way");
    if (job_ && !job_->round.may(messages::UpdateOrder::kReady)) {
        const bool is_early = job_->phase() < messages::UpdatePhase::kPrepared;
        return refuse_with(is_early ? "not every rank is prepared" : "ordered before");
    }
    if (why_not) return refuse_with(*why_not);
    // For a staged update and a rollback, prepare precedes ready; for a direct update, ready
    // precedes the stage.
    if (!job_) job_.emplace(order.update, UpdateJob::Kind::kDirect, config_.tp);
    job_->kv_policy = order.kv_policy;
    ask(messages::UpdateOrder::kReady,
        order.timeout_ms > 0 ? deadline_of(now, order.timeout_ms) : TimePoint::max());
    if (order.kv_policy == messages::KvPolicy::kDrain) job_->outcome.num_drained += num_started;
}

void ReplicaUpdate::settle(TimePoint now, bool is_still, bool is_run_out, TurnOutput& out) {
    if (!stands() || !job_->round.is_asking() ||
        job_->round.order() != messages::UpdateOrder::kReady)
        return;
    if (drains() && !is_run_out) return;
    if ((drains() || overwrites()) && !is_still) return;
    job_->round.finish();
    job_->deadline = TimePoint::max();
    if (overwrites()) job_->standing_since = now;
    answer_order(messages::UpdateOrder::kReady, std::nullopt, out);
}

// Reports to the door, in time, what the update waited for; the door then drops it.
void ReplicaUpdate::end_late(TimePoint now, const std::string& what_runs, TurnOutput& out) {
    if (!job_ || now < job_->deadline) return;
    const messages::UpdateOrder order = job_->round.order();
    Error error{ErrorCode::kDeadlineExceeded, fmt::format("phase ready: {}", what_runs)};
    if (job_->held) {
        error.message = fmt::format("phase stage: {}", what_runs);
    } else if (order != messages::UpdateOrder::kReady) {
        error.message =
            fmt::format("phase stage: no vote in time from {}", job_->names_of_silent_ranks());
    }
    fail(order, std::move(error), out);
}

std::optional<TimePoint> ReplicaUpdate::next_deadline() const {
    if (!job_ || job_->deadline == TimePoint::max()) return std::nullopt;
    return job_->deadline;
}

// Reports which ranks have not answered the current commit or drop.
void ReplicaUpdate::tell_who_is_awaited(TurnOutput& out) const {
    out.tokenizer.emplace_back(messages::UpdateWaits{
        .update = job_->id,
        .replica = config_.replica,
        .ranks = job_->silent_ranks(),
    });
}

messages::UpdateState ReplicaUpdate::state() const {
    if (weights_ == Weights::kTorn) return messages::UpdateState::kTorn;
    const bool is_staged = job_ && job_->phase() >= messages::UpdatePhase::kPrepared &&
                           job_->phase() <= messages::UpdatePhase::kReady;
    if (is_staged) return messages::UpdateState::kStaged;
    return weights_ == Weights::kAwaited ? messages::UpdateState::kAwaitingWeights
                                         : messages::UpdateState::kServing;
}

messages::UpdatePart ReplicaUpdate::part_of(messages::UpdateId update, messages::UpdateOrder order)
    const {
    messages::UpdatePart part;
    part.update = update;
    part.replica = config_.replica;
    part.order = order;
    part.state = state();
    part.epoch = version_.epoch;
    part.label = version_.label;
    part.digest = version_.digest;
    part.outcome.replica = config_.replica;
    return part;
}

// Answers an order of the current update.
void ReplicaUpdate::answer_order(
    messages::UpdateOrder order, std::optional<Error> error, TurnOutput& out
) const {
    messages::UpdatePart part = part_of(job_->id, order);
    part.ok = !error;
    if (error) {
        part.verdict = *error;
    } else if (order == messages::UpdateOrder::kStage) {
        part.epoch = job_->new_epoch;
        part.label = job_->label;
        part.digest = job_->digest;
    } else if (order == messages::UpdateOrder::kDrop) {
        part.verdict.message = job_->drop_reason;
    }
    part.outcome = job_->full_outcome();
    part.outcome.replica = config_.replica;
    out.tokenizer.emplace_back(std::move(part));
}

// Sends the last answer; no update is in progress afterwards.
void ReplicaUpdate::end(messages::UpdateOrder order, TurnOutput& out) {
    answer_order(order, std::nullopt, out);
    job_.reset();
}

void ReplicaUpdate::refuse_order(
    messages::UpdateId update, messages::UpdateOrder order, Error error, TurnOutput& out
) const {
    messages::UpdatePart part = part_of(update, order);
    part.verdict = std::move(error);
    out.tokenizer.emplace_back(std::move(part));
}

}  // namespace pitstop::scheduler
