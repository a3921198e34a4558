// The end of a replica's part of an update: its commit or its drop.
#include "scheduler_proc/replica_update.h"
#include "scheduler_proc/update_answers.h"

#include <utility>

namespace pitstop::scheduler {

bool ReplicaUpdate::may_commit(const messages::UpdateCommit& order, TurnOutput& out) const {
    auto error = problem_of_commit(order, facts());
    if (!error) return true;
    refuse_order(order.update, messages::UpdateOrder::kCommit, *std::move(error), out);
    return false;
}

void ReplicaUpdate::commit(TimePoint now, const KvCounts& counts, TurnOutput& out) {
    UpdateJob& job = *job_;
    ask(messages::UpdateOrder::kCommit, TimePoint::max());
    job.commit_ordered = now;
    job.outcome.num_kept = counts.num_kept;
    job.outcome.num_recomputed = counts.num_recomputed;
    if (job.kv_policy != messages::KvPolicy::kAbort)
        job.outcome.num_recomputed += job.num_retracted;
    job.outcome.num_aborted = counts.num_aborted;
    out.workers.emplace_back(messages::WorkerCommit{
        .update = job.id,
        .epoch = job.new_epoch,
        .rollback = job.kind == UpdateJob::Kind::kRollback,
    });
    if (!job.is_of_adapter()) swap_version();
    tell_who_is_awaited(out);
}

void ReplicaUpdate::swap_version() {
    // Old weights are gone if a direct update overwrote them, or if a loan returns their memory.
    const bool is_kept = job_->kind != UpdateJob::Kind::kDirect && !job_->is_on_loan;
    weights_.serve(
        {.epoch = job_->new_epoch, .label = job_->label, .digest = job_->digest},
        is_kept ? ReplicaWeights::Old::kRetained : ReplicaWeights::Old::kGone
    );
}

bool ReplicaUpdate::handle_committed(
    const messages::WorkerCommitted& answer, TimePoint now, TurnOutput& out
) {
    if (!awaits(answer.update, messages::UpdateOrder::kCommit, answer.rank)) return false;
    UpdateJob& job = *job_;
    if (answer.epoch != job.new_epoch) {
        out.fatal = make_error(
            ErrorCode::kInternal,
            "rank {} committed epoch {} instead of {}",
            raw(answer.rank),
            raw(answer.epoch),
            raw(job.new_epoch)
        );
        return true;
    }
    messages::RankOutcome rank = job.ranks[static_cast<std::size_t>(raw(answer.rank))];
    rank.ok = true;
    rank.phase = messages::UpdatePhase::kCommitted;
    rank.commit_s = static_cast<double>(answer.elapsed_us) * 1e-6;
    if (record_outcome(std::move(rank)) == messages::UpdateRound::Progress::kDone) {
        job.record_commit(now);
        job.committed = job.is_on_loan ? std::optional(now) : std::nullopt;
        if (!job.committed) end(messages::UpdateOrder::kCommit, out);
    } else {
        tell_who_is_awaited(out);
    }
    return true;
}

void ReplicaUpdate::drop(const messages::UpdateDrop& order, TurnOutput& out) {
    // `torn` holds whatever this replica's outcome: another replica was overwritten or did not
    // commit.
    if (order.torn) weights_.tear();
    if (!job_ || job_->id != order.update) {
        out.tokenizer.emplace_back(nothing_to_drop(order, facts()));
        return;
    }
    UpdateJob& job = *job_;
    if (!job.round.may(messages::UpdateOrder::kDrop)) {
        return refuse_order(
            order.update,
            messages::UpdateOrder::kDrop,
            wrong_order("drop", order.update, "ended before"),
            out
        );
    }
    const bool is_stage_sent = job.is_stage_sent();
    if (job.kind == UpdateJob::Kind::kDirect && is_stage_sent && may_have_written(job.ranks))
        weights_.tear();
    job.drop_reason = order.reason;
    ask(messages::UpdateOrder::kDrop, TimePoint::max());
    if (!is_stage_sent) {
        job.round.finish();
        return end(messages::UpdateOrder::kDrop, out);
    }
    out.workers.emplace_back(messages::WorkerDrop{.update = job.id});
    tell_who_is_awaited(out);
}

bool ReplicaUpdate::handle_dropped(const messages::WorkerDropped& answer, TurnOutput& out) {
    if (!awaits(answer.update, messages::UpdateOrder::kDrop, answer.rank)) return false;
    messages::RankOutcome rank = job_->ranks[static_cast<std::size_t>(raw(answer.rank))];
    // A rank that failed keeps the phase in which it failed.
    if (rank.ok || !rank.code) rank.phase = messages::UpdatePhase::kDropped;
    if (record_outcome(std::move(rank)) == messages::UpdateRound::Progress::kDone) {
        end(messages::UpdateOrder::kDrop, out);
    } else {
        tell_who_is_awaited(out);
    }
    return true;
}

}  // namespace pitstop::scheduler
