// Lends the KV cache's memory to a staged update, on GPUs that cannot fit two copies of the weights
// and the KV (--update-mode lend; design section 5):
//
//   stage ordered -> running requests are retracted, or finish (drain) -> no step in flight
//   -> the ranks release the KV -> they stage, vote, commit, or drop -> they take the KV again
//
// The scheduler keeps a request's tokens. The request continues with a prefill, under the version
// that serves then. After a commit, the caller is answered once the KV memory has been allocated
// again, or has failed to be. Nothing is planned before.
#include "scheduler_proc/scheduler.h"

#include <utility>

namespace pitstop::scheduler {

void Scheduler::stage(messages::UpdateStage order, TurnOutput& out) {
    Adapters& adapters = runner_.adapters();
    const std::string adapter = order.spec.adapter;
    std::optional<Beginning> beginning;
    if (!adapter.empty() && is_ready()) {
        if (auto error = adapters.problem_of(order.spec))
            return update_.refuse_stage(order, *std::move(error), out);
        if (order.spec.partial) beginning = Beginning{adapters.served(adapter)};
        if (beginning && beginning->version.is_pinned) order.spec.adapter_pinned = true;
    }
    if (!update_.may_stage(order, facts().why_no_update(), out)) return;
    adapters.forget_previous(adapter, out);  // first: the new version may need its memory
    const bool is_drain = order.spec.kv_policy == messages::KvPolicy::kDrain;
    update_.stage(std::move(order), std::move(beginning), now_, out);
    runner_.watch_steps();
    if (!update_.has_loan()) return;
    if (!is_drain) return update_.record_loan(runner_.retract_all(), 0);
    if (const auto why_not = facts().why_no_drain()) {
        return update_.refuse_loan({ErrorCode::kFailedPrecondition, *why_not}, out);
    }
    update_.record_loan(0, runner_.requests().num_started());
}

void Scheduler::finish_loan(TurnOutput& out) {
    if (memory_.has_order()) return;
    if (update_.awaits_return() && !memory_.is_on_loan()) return update_.end_loan(now_, out);
    if (update_.wants_loan()) {
        if (update_.drains_for_loan() && runner_.requests().has_started()) return;
        if (!runner_.steps().empty()) return;
        // KV that an earlier call released stays released. If only some ranks have the KV, the
        // release makes all ranks alike.
        const bool is_there =
            memory_.is_resident(messages::MemoryTag::kKvCache) || !memory_.is_kv_alike();
        if (!is_there || memory_.is_lent()) return update_.start_on_loan(now_, out);
        update_.record_standing(now_);
        memory_.lend();
    } else if (memory_.is_lent() && !update_.has_loan()) {
        memory_.reclaim();
    } else {
        return;
    }
    advance_memory(out);
}

}  // namespace pitstop::scheduler
