#include "scheduler_proc/replica_update.h"

#include "base/check.h"
#include "scheduler_proc/update_answers.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace pitstop::scheduler {
namespace {

// Ranks give up a little before their scheduler, so that they can report what they waited for.
std::int64_t time_of_workers(std::int64_t timeout_ms) {
    constexpr std::int64_t kHeadStartMs = 500;
    return timeout_ms - std::min(timeout_ms / 10, kHeadStartMs);
}

}  // namespace

void ReplicaUpdate::ask(messages::UpdateOrder order, TimePoint deadline) {
    job_->round.ask(order);
    job_->deadline = deadline;
}

void ReplicaUpdate::refuse_stage(const messages::UpdateStage& order, Error error, TurnOutput& out)
    const {
    refuse_order(order.update, order_of(order), std::move(error), out);
}

bool ReplicaUpdate::may_stage(
    const messages::UpdateStage& order, const WhyNot& why_not, TurnOutput& out
) const {
    auto error = problem_of_stage(order, why_not, facts());
    if (!error) return true;
    refuse_order(order.update, order_of(order), *std::move(error), out);
    return false;
}

void ReplicaUpdate::stage(
    messages::UpdateStage order, std::optional<Beginning> beginning, TimePoint now, TurnOutput& out
) {
    const messages::UpdateOrder asked = order_of(order);
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
    // A stage of the model's weights overwrites the retained copy. An adapter's stage does not.
    if (!job.is_of_adapter()) weights_.forget_retained();
    messages::WorkerStage to_workers{
        .update = job.id,
        .spec = job.spec,
        .timeout_ms = time_of_workers(order.timeout_ms),
    };
    if (beginning) beginning->put_into(to_workers);
    // Borrows the KV memory even if the replica has no weights: some ranks may still have theirs.
    job.is_on_loan = lends_ && job.kind == UpdateJob::Kind::kStaged && !job.is_of_adapter();
    if (job.is_on_loan) {
        job.held = std::move(to_workers);
    } else {
        out.workers.emplace_back(std::move(to_workers));
    }
    job.spec.source.payloads.clear();  // payloads are large, and not needed again
    job.beginning = std::move(beginning);
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

void ReplicaUpdate::fill(messages::UpdateFill order, TimePoint now, TurnOutput& out) {
    if (auto error = problem_of_fill(order, facts())) {
        return refuse_order(order.update, messages::UpdateOrder::kFill, *std::move(error), out);
    }
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

// Called when the door sends no more buckets: the ranks verify and vote.
void ReplicaUpdate::finish_session(
    const messages::UpdateFinish& order, TimePoint now, TurnOutput& out
) {
    if (!job_ || !job_->may(order.update, messages::UpdateOrder::kFill)) {
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

// Every rank already has the retained copy, so this replica is prepared at once.
void ReplicaUpdate::roll_back(
    const messages::UpdateRollback& order, const WhyNot& why_not, TurnOutput& out
) {
    if (auto error = problem_of_rollback(order, why_not, facts())) {
        return refuse_order(order.update, messages::UpdateOrder::kStage, *std::move(error), out);
    }
    UpdateJob& job = job_.emplace(order.update, UpdateJob::Kind::kRollback, config_.tp);
    job.new_epoch = order.new_epoch;
    job.label = weights_.retained()->label;
    job.digest = weights_.retained()->digest;
    for (messages::RankOutcome& rank : job.ranks) {
        rank.ok = true;
        rank.phase = messages::UpdatePhase::kPrepared;
    }
    ask(messages::UpdateOrder::kStage, TimePoint::max());
    job.round.finish();
    answer_order(messages::UpdateOrder::kStage, std::nullopt, out);
}

bool ReplicaUpdate::roll_back_adapter(
    const messages::UpdateRollback& order,
    const Result<AdapterUse>& previous,
    TimePoint now,
    const WhyNot& why_not,
    TurnOutput& out
) {
    std::optional<Error> error = problem_of_order("rollback", order.update, why_not, facts());
    if (!error && !previous) error = previous.error();
    if (!error) {
        stage(stage_of(order, *previous), Beginning{*previous, /*is_rollback=*/true}, now, out);
        return true;
    }
    refuse_order(order.update, messages::UpdateOrder::kStage, *std::move(error), out);
    return false;
}

bool ReplicaUpdate::handle_vote(messages::WorkerStaged vote, TurnOutput& out) {
    if (!awaits(vote.update, messages::UpdateOrder::kStage, vote.outcome.rank)) return false;
    UpdateJob& job = *job_;
    const auto rank = static_cast<std::size_t>(raw(vote.outcome.rank));
    job.digests[rank] = std::move(vote.digests);
    job.config_digests[rank] = std::move(vote.adapter_config_digest);
    job.adapter_bytes = std::max(job.adapter_bytes, vote.adapter_bytes);
    job.declared.merge(vote.declared);
    switch (record_outcome(std::move(vote.outcome))) {
        case messages::UpdateRound::Progress::kGoesOn:
            return true;
        case messages::UpdateRound::Progress::kFailed:
            fail(messages::UpdateOrder::kStage, job.error_of_votes(), out);
            return true;
        case messages::UpdateRound::Progress::kDone:
            break;
    }
    if (const Result<> verified = job.verify(); !verified) {
        fail(messages::UpdateOrder::kStage, verified.error(), out);
        return true;
    }
    job.deadline = TimePoint::max();
    answer_order(messages::UpdateOrder::kStage, std::nullopt, out);
    return true;
}

// Marks the update as failed. Only a drop can follow.
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
    if (auto error = problem_of_ready(order, why_not, facts())) {
        return refuse_order(order.update, messages::UpdateOrder::kReady, *std::move(error), out);
    }
    if (!job_) job_.emplace(order.update, UpdateJob::Kind::kDirect, config_.tp);
    job_->kv_policy = order.kv_policy;
    ask(messages::UpdateOrder::kReady,
        order.timeout_ms > 0 ? deadline_of(now, order.timeout_ms) : TimePoint::max());
    if (order.kv_policy == messages::KvPolicy::kDrain) job_->outcome.num_drained += num_started;
}

void ReplicaUpdate::advance(TimePoint now, bool is_still, bool is_run_out, TurnOutput& out) {
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

// Reports to the door, in time, what the update waited for. The door then drops the update.
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

void ReplicaUpdate::tell_who_is_awaited(TurnOutput& out) const {
    out.tokenizer.emplace_back(awaited_by(facts()));
}

void ReplicaUpdate::answer_order(
    messages::UpdateOrder order, std::optional<Error> error, TurnOutput& out
) const {
    out.tokenizer.emplace_back(answer_to(order, std::move(error), facts()));
}

// Sends the last answer; no update is in progress afterwards.
void ReplicaUpdate::end(messages::UpdateOrder order, TurnOutput& out) {
    answer_order(order, std::nullopt, out);
    job_.reset();
}

void ReplicaUpdate::refuse_order(
    messages::UpdateId update, messages::UpdateOrder order, Error error, TurnOutput& out
) const {
    out.tokenizer.emplace_back(refusal_of(update, order, std::move(error), facts()));
}

}  // namespace pitstop::scheduler
