// The calls that concern all five parts of the scheduler: the parts' objections, and the
// effects on them.
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
    pause_.go_on(call, now_, why_not_on(), why_idle(), out);
}

void Scheduler::handle(const messages::FlushCache& call, TurnOutput& out) {
    std::optional<Error> in_use;
    if (!call.reset_running && runner_.requests().num_running() > 0)
        in_use = Error{ErrorCode::kFailedPrecondition, runner_.requests().describe_page_holders()};
    const bool is_accepted = flushes_.begin(call, now_, in_use, out);
    if (is_accepted && call.reset_running) runner_.retract_all();
}

// Later plans have the new label. Steps in flight keep the label they were planned under, and so do
// their tokens.
void Scheduler::handle(const messages::SetWeightLabel& call, TurnOutput& out) {
    messages::LabelPart part{
        .call = call.call,
        .replica = config_.replica,
        .epoch = version().epoch,
        .old_label = version().label,
        .label = version().label,
    };
    std::optional<Error> problem;
    if (!is_ready()) {
        problem = not_ready();
    } else if (const auto update = update_.under_way()) {
        problem = make_error(
            ErrorCode::kFailedPrecondition,
            "update {} is under way and sets its own label; wait for it",
            static_cast<std::uint64_t>(*update)
        );
    } else if (!has_weights()) {
        problem = why_idle();
    }
    if (problem) {
        part.verdict = *problem;
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

// Returns why these tags cannot be released in the present state of requests and updates; nothing
// if they can.
std::optional<Error> Scheduler::problem_of_release(const std::vector<messages::MemoryTag>& tags
) const {
    const auto refused = [](std::string why) {
        return Error{ErrorCode::kFailedPrecondition, std::move(why)};
    };
    const auto names = [&](messages::MemoryTag tag) {
        return std::ranges::find(tags, tag) != tags.end();
    };
    if (!is_paused() && runner_.requests().num_open() > 0) {
        return refused(fmt::format(
            "{} requests are open and generation is not paused; pause first, or wait for them",
            runner_.requests().num_open()
        ));
    }
    if (pause_.runs_out()) return refused("a pause is still waiting for running requests to end");
    if (names(messages::MemoryTag::kKvCache) && runner_.requests().num_running() > 0) {
        return refused(fmt::format(
            "kv_cache is in use: {}; pause with retract first",
            runner_.requests().describe_page_holders()
        ));
    }
    const std::optional<messages::UpdateId> update = update_.under_way();
    const bool is_on_loan = update_.has_loan() || memory_.is_on_loan();
    if (update && (names(messages::MemoryTag::kWeights) || update_.is_committing() || is_on_loan)) {
        return refused(fmt::format(
            "update {} is under way; wait for it, or drop its stage",
            static_cast<std::uint64_t>(*update)
        ));
    }
    return std::nullopt;
}

void Scheduler::handle(const messages::UnloadAdapter& call, TurnOutput& out) {
    messages::AdapterPart part{.call = call.call, .replica = config_.replica};
    if (!is_ready()) {
        part.verdict = not_ready();
    } else if (auto unloaded = runner_.adapters().unload(call.name, out)) {
        part.adapter = unloaded->version;
        part.num_requests = runner_.adapters().num_requests(unloaded->id);
    } else {
        part.verdict = unloaded.error();
    }
    out.tokenizer.emplace_back(std::move(part));
}

void Scheduler::handle(const messages::ReleaseMemory& call, TurnOutput& out) {
    std::optional<Error> problem;
    if (!is_ready()) {
        problem = not_ready();
    } else {
        problem = problem_of_release(memory_.tags_to_release(call.tags));
    }
    answer_memory(memory_.release(call, now_, std::move(problem)), out);
}

void Scheduler::handle(const messages::ResumeMemory& call, TurnOutput& out) {
    std::optional<Error> problem;
    if (!is_ready()) {
        problem = not_ready();
    } else if (memory_.is_lent()) {
        problem = Error{
            ErrorCode::kFailedPrecondition,
            "kv_cache is lent to an update (--update-mode lend) until the update ends"};
    }
    answer_memory(memory_.resume(call, now_, std::move(problem)), out);
}

void Scheduler::settle_memory(TurnOutput& out) {
    ReplicaMemory::Effects effects = memory_.settle(runner_.steps().empty(), out);
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

void Scheduler::handle(const messages::UpdateReady& order, TurnOutput& out) {
    std::optional<std::string> why_not;
    if (order.kv_policy == messages::KvPolicy::kDrain && is_ready()) why_not = why_no_drain();
    if (!why_not) why_not = why_no_update();
    update_.make_ready(order, now_, runner_.requests().num_started(), why_not, out);
}

// Returns why running requests cannot finish (drain), or nothing.
std::optional<std::string> Scheduler::why_no_drain() const {
    if (!runner_.requests().has_started()) return std::nullopt;
    if (memory_.is_lent()) {
        return "running requests cannot finish (drain): their KV was lent to the update; the stage "
               "must declare drain";
    }
    if (is_paused() && pause_.mode() != messages::PauseMode::kWait) {
        return fmt::format(
            "paused with {} running and {} waiting requests, which cannot finish (drain)",
            runner_.requests().num_running(),
            runner_.requests().num_waiting()
        );
    }
    if (const auto reason = why_idle())
        return fmt::format("running requests cannot finish (drain): {}", reason->message);
    return std::nullopt;
}

std::optional<std::string> Scheduler::why_no_update() const {
    if (!is_ready()) return "still loading";
    if (!memory_.is_resident(messages::MemoryTag::kWeights)) return memory_.what_is_missing();
    return std::nullopt;
}

// Applies the KV policy first: the plans after the commit start from what the policy left.
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
    std::optional<Error> problem = why_unreadable();
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
    std::optional<Error> problem = why_unreadable();
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

std::optional<Error> Scheduler::why_unreadable() const {
    if (!is_ready()) return not_ready();
    if (!memory_.is_resident(messages::MemoryTag::kWeights)) {
        return Error{
            ErrorCode::kFailedPrecondition,
            "the weights are released, or about to be; resume them first"};
    }
    if (update_.weights().are_awaited()) {
        return Error{
            ErrorCode::kFailedPrecondition,
            "there are no weights: none have arrived yet, or they were released and not kept"};
    }
    return std::nullopt;
}

std::optional<Error> Scheduler::why_not_on() const {
    if (!is_torn() && !is_released()) return std::nullopt;
    return why_idle();
}

std::optional<Error> Scheduler::why_idle() const {
    if (is_torn()) {
        return Error{
            ErrorCode::kFailedPrecondition,
            "the weights are torn: a direct update failed half-way; nothing is generated until the "
            "next complete update"};
    }
    if (is_released()) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "{}; nothing is generated until it is resumed",
            memory_.what_is_missing()
        );
    }
    if (!has_weights()) {
        return Error{
            ErrorCode::kFailedPrecondition,
            "there are no weights: none have arrived yet, or they were released and not kept; "
            "nothing is generated until the next complete update"};
    }
    return std::nullopt;
}

Error Scheduler::not_ready() const {
    return make_error(
        ErrorCode::kUnavailable,
        "replica {} is loading; waiting for {}",
        raw(config_.replica),
        workers_.who_is_missing()
    );
}

}  // namespace pitstop::scheduler
