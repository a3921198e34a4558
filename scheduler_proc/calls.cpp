// The calls that concern several parts of the scheduler: what each changes in every part.
#include "base/check.h"
#include "scheduler_proc/scheduler.h"

#include <algorithm>
#include <utility>

namespace pitstop::scheduler {

void Scheduler::handle(const messages::PauseGeneration& call, TurnOutput& out) {
    messages::PausePart* part = pause_.begin(call, now_, out);
    if (part == nullptr) return;
    if (call.mode == messages::PauseMode::kAbort) {
        part->num_aborted =
            runner_.abort_all(OpenRequests::Which::kAll, "generation was paused (abort)", out);
    } else if (call.mode == messages::PauseMode::kRetract) {
        part->num_retracted = runner_.retract_all();
    }
}

void Scheduler::handle(const messages::ContinueGeneration& call, TurnOutput& out) {
    pause_.go_on(call, now_, facts().why_not_on(), facts().why_idle(), out);
}

void Scheduler::handle(const messages::FlushCache& call, TurnOutput& out) {
    std::optional<Error> in_use;
    if (!call.reset_running && runner_.requests().num_running() > 0)
        in_use = Error{ErrorCode::kFailedPrecondition, runner_.requests().describe_page_holders()};
    const bool is_accepted = flushes_.begin(call, now_, in_use, out);
    if (is_accepted && call.reset_running) runner_.retract_all();
}

// Later plans have the new label. Steps in flight, and the tokens they sample, keep the label that
// they were planned under.
void Scheduler::handle(const messages::SetWeightLabel& call, TurnOutput& out) {
    messages::LabelPart part{
        .call = call.call,
        .replica = config_.replica,
        .epoch = version().epoch,
        .old_label = version().label,
        .label = version().label,
    };
    if (auto problem = facts().why_no_label()) {
        part.verdict = *std::move(problem);
    } else {
        update_.weights().relabel(call.label);
        part.label = version().label;
        if (call.abort_all) {
            part.num_aborted = runner_.abort_all(
                OpenRequests::Which::kAll,
                fmt::format("the weights are labelled '{}'", call.label),
                out
            );
        }
    }
    out.tokenizer.emplace_back(std::move(part));
}

void Scheduler::handle(const messages::UnloadAdapter& call, TurnOutput& out) {
    messages::AdapterPart part{
        .call = call.call, .replica = config_.replica, .adapter = {.name = call.name}};
    const std::optional<messages::AdapterVersion> lost = runner_.adapters().lost_version(call.name);
    if (auto error = facts().why_not_ready()) {
        part.verdict = *std::move(error);
    } else if (auto unloaded = runner_.adapters().unload(call.name, out)) {
        part.adapter = unloaded->version;
        part.num_requests = runner_.adapters().num_requests(unloaded->id);
    } else {
        part.verdict = unloaded.error();
        part.was_lost = lost.has_value();
        if (lost) part.adapter = *lost;
    }
    out.tokenizer.emplace_back(std::move(part));
}

void Scheduler::handle(const messages::ReleaseMemory& call, TurnOutput& out) {
    auto problem = facts().why_no_release(memory_.tags_to_release(call.tags));
    answer_memory(memory_.release(call, now_, std::move(problem)), out);
}

void Scheduler::handle(const messages::ResumeMemory& call, TurnOutput& out) {
    answer_memory(memory_.resume(call, now_, facts().why_no_resume()), out);
}

void Scheduler::advance_memory(TurnOutput& out) {
    ReplicaMemory::Effects effects = memory_.advance(runner_.steps().empty(), out);
    if (effects.releases_kv) {
        CHECK(runner_.requests().num_running() == 0);
        runner_.clear_cache();
    }
    if (effects.releases_weights) update_.weights().forget_retained();
    if (effects.loses_weights) update_.weights().lose();
    if (effects.loan_failure) update_.refuse_loan(*std::move(effects.loan_failure), out);
    answer_memory(std::move(effects.answer), out);
}

void Scheduler::answer_memory(std::optional<messages::MemoryPart> part, TurnOutput& out) const {
    if (!part) return;
    part->has_weights = has_weights();
    out.tokenizer.emplace_back(*std::move(part));
}

void Scheduler::roll_back(const messages::UpdateRollback& order, TurnOutput& out) {
    const std::optional<std::string> why_not = facts().why_no_update();
    if (order.adapter.empty()) return update_.roll_back(order, why_not, out);
    const Result<AdapterUse> previous = runner_.adapters().previous(order.adapter);
    if (update_.roll_back_adapter(order, previous, now_, why_not, out)) runner_.watch_steps();
}

void Scheduler::handle(const messages::UpdateReady& order, TurnOutput& out) {
    std::optional<std::string> why_not;
    if (order.kv_policy == messages::KvPolicy::kDrain && is_ready())
        why_not = facts().why_no_drain();
    if (!why_not) why_not = facts().why_no_update();
    update_.make_ready(order, now_, runner_.requests().num_started(), why_not, out);
}

// Applies the KV policy before the commit, so that later plans have its result.
void Scheduler::handle(const messages::UpdateCommit& order, TurnOutput& out) {
    if (!update_.may_commit(order, out)) return;
    ReplicaUpdate::KvCounts counts;
    if (std::optional<AdapterUse> adapter = update_.new_adapter()) {
        counts.num_recomputed =
            runner_.commit_adapter(*std::move(adapter), update_.adapter_policy(), out);
        counts.num_kept = runner_.requests().num_running();
        return update_.commit(now_, counts, out);
    }
    switch (update_.kv_policy()) {
        case messages::KvPolicy::kKeep:
            counts.num_recomputed = runner_.retract_scorings();
            counts.num_kept = runner_.requests().num_running();
            break;
        case messages::KvPolicy::kRecompute:
            counts.num_recomputed = runner_.retract_all();
            runner_.refuse_older_kv(update_.new_epoch());
            break;
        case messages::KvPolicy::kDrain:
            CHECK(runner_.requests().num_running() == 0);
            break;
        case messages::KvPolicy::kAbort:
            counts.num_aborted = runner_.abort_all(
                OpenRequests::Which::kStarted,
                fmt::format(
                    "the weights were updated to epoch {} (abort)", raw(update_.new_epoch())
                ),
                out
            );
            break;
    }
    runner_.begin_epoch(update_.new_epoch());
    update_.commit(now_, counts, out);
}

void Scheduler::handle(const messages::WorkerReadTensor& call, TurnOutput& out) {
    std::optional<Error> problem = facts().why_unreadable();
    if (!problem) {
        out.workers.emplace_back(call);
        return;
    }
    out.tokenizer.emplace_back(messages::WorkerTensor{
        .call = call.call,
        .replica = config_.replica,
        .verdict = *std::move(problem),
    });
}

void Scheduler::handle(const messages::WorkerDigest& call, TurnOutput& out) {
    std::optional<Error> problem = facts().why_unreadable();
    if (!problem) {
        out.workers.emplace_back(call);
        return;
    }
    out.tokenizer.emplace_back(messages::WorkerDigests{
        .call = call.call,
        .replica = config_.replica,
        .epoch = version().epoch,
        .label = version().label,
        .verdict = *std::move(problem),
    });
}

}  // namespace pitstop::scheduler
