// Runs this replica's part of a weight update (design section 5; messages/weights.h has the
// protocol).
//
// The door (tokenizer_proc) drives an update over all replicas with orders; the ranks vote. Every
// worker's socket gets the commit between two plans. Steps planned before the commit run under the
// old version, later steps under the new one, alike on every rank (P1). The commit is refused
// unless every rank of this replica has voted for it and the replica is ready as the update asked
// (P2).
//
// The caller reports running requests and resident memory.
//
// Thread:  the loop thread only.
// Bounded: one update at a time; a second one is refused while one is in progress.
#pragma once

#include "scheduler_proc/adapters.h"
#include "scheduler_proc/replica_weights.h"
#include "scheduler_proc/scheduler_config.h"
#include "scheduler_proc/tallies.h"
#include "scheduler_proc/turn.h"
#include "scheduler_proc/update_checks.h"
#include "scheduler_proc/update_job.h"

#include <optional>
#include <string>
#include <utility>

namespace pitstop::scheduler {

class ReplicaUpdate {
  public:
    explicit ReplicaUpdate(const SchedulerConfig& config)
        : config_(config), weights_(config.epoch, config.label) {}

    // Records the digest that the ranks loaded, whether they loaded weights, and whether a staged
    // version needs the KV cache's memory.
    void open(std::string digest, bool has_weights, bool lends) {
        weights_.open(std::move(digest), has_weights);
        lends_ = lends;
    }
    [[nodiscard]] const ReplicaWeights& weights() const { return weights_; }
    [[nodiscard]] ReplicaWeights& weights() { return weights_; }

    // Returns the id of the current update, or nothing.
    [[nodiscard]] std::optional<messages::UpdateId> under_way() const {
        return job_ ? std::optional(job_->id) : std::nullopt;
    }
    [[nodiscard]] bool is_committing() const {
        return job_ && job_->phase() == messages::UpdatePhase::kCommitting;
    }
    // Returns whether the update waits for running requests to finish, or keeps the replica stopped
    // until the commit. No request starts then.
    [[nodiscard]] bool drains() const {
        return stands() && job_->kv_policy == messages::KvPolicy::kDrain;
    }
    // Returns whether the ranks overwrite the live copy, or are about to. Nothing runs then, except
    // in a drain.
    [[nodiscard]] bool overwrites() const {
        return stands() && job_->kind == UpdateJob::Kind::kDirect;
    }

    // ---- loans of the KV cache's memory to a staged version (--update-mode lend) ----
    // Returns whether the memory is lent: from the stage's order to the last rank's commit or drop.
    // Meanwhile nothing is planned, except for a drain.
    [[nodiscard]] bool has_loan() const { return job_ && job_->is_on_loan && !job_->committed; }
    // Returns whether all ranks have committed and the answer waits until the KV has memory again.
    [[nodiscard]] bool awaits_return() const { return job_ && job_->committed; }
    // Returns whether the stage waits for the KV cache's memory.
    [[nodiscard]] bool wants_loan() const {
        return job_ && job_->held && !job_->round.has_failed();
    }
    // Returns whether running requests must finish before the KV cache's memory is lent.
    [[nodiscard]] bool drains_for_loan() const {
        return wants_loan() && job_->kv_policy == messages::KvPolicy::kDrain;
    }
    // Records that steps stop now because of the loan.
    void record_standing(TimePoint now) { job_->standing_since = now; }
    // Records the cost of the loan: how many requests were retracted, or finished first.
    void record_loan(std::int64_t num_retracted, std::int64_t num_drained);
    // Called when the memory is available and no step runs: the ranks begin to stage. REQUIRES:
    // wants_loan().
    void start_on_loan(TimePoint now, TurnOutput& out);
    // Called when the memory was returned or could not be: answers the caller. REQUIRES:
    // awaits_return().
    void end_loan(TimePoint now, TurnOutput& out);
    // Called when the memory could not be lent: fails the update if it still waits for the memory.
    void refuse_loan(Error error, TurnOutput& out);

    // ---- orders of the door ----
    void refuse_stage(const messages::UpdateStage& order, Error error, TurnOutput& out) const;
    // Returns whether the stage may be ordered now; if not, it is refused. After true, the stage
    // must follow at once.
    [[nodiscard]] bool may_stage(
        const messages::UpdateStage& order, const WhyNot& why_not, TurnOutput& out
    ) const;
    // `beginning`: of an adapter's partial update. REQUIRES: may_stage().
    void stage(
        messages::UpdateStage order,
        std::optional<Beginning> beginning,
        TimePoint now,
        TurnOutput& out
    );
    // Records the durations of steps since the stage was ordered, for the stage's answer.
    void record_steps(const StepTimes::Watched& steps) {
        if (job_) job_->record_steps(steps);
    }
    void fill(messages::UpdateFill order, TimePoint now, TurnOutput& out);
    void finish_session(const messages::UpdateFinish& order, TimePoint now, TurnOutput& out);
    void roll_back(const messages::UpdateRollback& order, const WhyNot& why_not, TurnOutput& out);
    // The ranks stage the adapter's `previous` version anew. Returns false if the order was
    // refused.
    bool roll_back_adapter(
        const messages::UpdateRollback& order,
        const Result<AdapterUse>& previous,
        TimePoint now,
        const WhyNot& why_not,
        TurnOutput& out
    );
    // `num_started`: the number of requests that a drain waits for.
    void make_ready(
        const messages::UpdateReady& order,
        TimePoint now,
        std::int64_t num_started,
        const WhyNot& why_not,
        TurnOutput& out
    );
    // Returns whether the commit may be ordered now; if not, refuses it. After true, commit() must
    // follow at once, with the number of requests that the KV policy concerned.
    [[nodiscard]] bool may_commit(const messages::UpdateCommit& order, TurnOutput& out) const;
    // REQUIRES: may_commit().
    [[nodiscard]] messages::KvPolicy kv_policy() const { return job_->kv_policy; }
    [[nodiscard]] Epoch new_epoch() const { return job_->new_epoch; }
    [[nodiscard]] messages::AdapterPolicy adapter_policy() const {
        return job_->spec.adapter_policy;
    }
    [[nodiscard]] std::optional<AdapterUse> new_adapter() const { return job_->new_adapter(); }
    struct KvCounts {
        std::int64_t num_kept = 0;
        std::int64_t num_recomputed = 0;
        std::int64_t num_aborted = 0;
    };
    void commit(TimePoint now, const KvCounts& counts, TurnOutput& out);
    void drop(const messages::UpdateDrop& order, TurnOutput& out);

    // ---- answers of ranks. Each returns false if no order waits for the answer ----
    bool handle_filled(messages::WorkerFilled answer, TurnOutput& out);
    bool handle_vote(messages::WorkerStaged vote, TurnOutput& out);
    bool handle_committed(const messages::WorkerCommitted& answer, TimePoint now, TurnOutput& out);
    bool handle_dropped(const messages::WorkerDropped& answer, TurnOutput& out);

    // Answers the order to make ready once the replica is in the state that the update needs.
    void advance(TimePoint now, bool is_still, bool is_run_out, TurnOutput& out);
    // `what_runs` names what the update still waits for.
    void end_late(TimePoint now, const std::string& what_runs, TurnOutput& out);
    [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  private:
    // Returns whether the replica was told to stop, and stays stopped until the commit or the drop.
    [[nodiscard]] bool stands() const { return job_ && is_asked_to_stand(job_->phase()); }
    [[nodiscard]] bool awaits(messages::UpdateId update, messages::UpdateOrder order, Rank rank)
        const {
        return job_ && job_->id == update && job_->round.awaits(order, raw(rank));
    }
    void ask(messages::UpdateOrder order, TimePoint deadline);
    messages::UpdateRound::Progress record_outcome(messages::RankOutcome outcome);
    void fail(messages::UpdateOrder order, Error error, TurnOutput& out);
    [[nodiscard]] UpdateFacts facts() const { return {config_, weights_, job_}; }
    void tell_who_is_awaited(TurnOutput& out) const;
    void swap_version();
    void answer_order(messages::UpdateOrder order, std::optional<Error> error, TurnOutput& out)
        const;
    void end(messages::UpdateOrder order, TurnOutput& out);
    void refuse_order(
        messages::UpdateId update, messages::UpdateOrder order, Error error, TurnOutput& out
    ) const;

    SchedulerConfig config_;
    ReplicaWeights weights_;
    bool lends_ = false;
    std::optional<UpdateJob> job_{};
};

}  // namespace pitstop::scheduler
