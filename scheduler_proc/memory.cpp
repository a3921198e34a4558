// Release and resume of memory, and what the replica does while some of it, or its weights, are not
// there (design section 6).
//
// A release is carried out with no step in flight; from its acceptance on nothing is planned. What
// requests hold is never taken from them: they are retracted by a pause that says so, or the
// release is refused (P4).
#include "base/check.h"
#include "scheduler_proc/scheduler.h"

#include <algorithm>

namespace pitstop::scheduler {
namespace {

bool has(const std::vector<MemoryTag>& tags, MemoryTag tag) {
    return std::ranges::find(tags, tag) != tags.end();
}

}  // namespace

// Why a release of these tags cannot be accepted in the state that requests and updates are in.
std::optional<Error> Scheduler::problem_of_release(const std::vector<MemoryTag>& tags) const {
    const auto refused = [](std::string why) {
        return Error{ErrorCode::kFailedPrecondition, std::move(why)};
    };
    if (!pause_ && !requests_.empty()) {
        return refused(fmt::format(
            "{} requests are open and generation is not paused; pause first, or wait for them",
            requests_.size()
        ));
    }
    if (pause_ && pause_->mode == PauseMode::kWait && !pause_->is_standing)
        return refused("a pause is still waiting for running requests to end");
    if (has(tags, MemoryTag::kKvCache) && !running_.empty()) {
        return refused(fmt::format(
            "kv_cache is in use: {}; a pause with retract takes it from them", who_holds_pages()
        ));
    }
    if (job_ && (has(tags, MemoryTag::kWeights) || job_->end == UpdateJob::End::kCommitting)) {
        return refused(fmt::format(
            "update {} is under way; wait for it, or drop its stage",
            static_cast<std::uint64_t>(job_->id)
        ));
    }
    return std::nullopt;
}

void Scheduler::release_memory(const ReleaseMemory& call, TurnOutput& out) {
    const std::vector<MemoryTag> tags = memory_.tags_for(MemoryAction::kRelease, call.tags);
    bool was_done = false;
    std::optional<Error> problem;
    if (!is_ready()) problem = not_ready();
    if (!problem) problem = memory_.problem_of(MemoryAction::kRelease, tags, was_done);
    if (!problem) problem = problem_of_release(tags);
    if (problem) return answer_memory(call.call, *std::move(problem), was_done, out);
    memory_.begin({
        .call = call.call,
        .order = CallId{++num_memory_orders_ * 2},  // and one more for the way back
        .action = MemoryAction::kRelease,
        .tags = tags,
        .keep_weights = call.keep_weights,
        .deadline = deadline_of(call.timeout_ms),
    });
}

void Scheduler::resume_memory(const ResumeMemory& call, TurnOutput& out) {
    const std::vector<MemoryTag> tags = memory_.tags_for(MemoryAction::kResume, call.tags);
    bool was_done = false;
    std::optional<Error> problem;
    if (!is_ready()) problem = not_ready();
    if (!problem) problem = memory_.problem_of(MemoryAction::kResume, tags, was_done);
    if (problem) return answer_memory(call.call, *std::move(problem), was_done, out);
    memory_.begin({
        .call = call.call,
        .order = CallId{++num_memory_orders_ * 2},
        .action = MemoryAction::kResume,
        .tags = tags,
        .keep_weights = are_weights_kept_,
        .deadline = deadline_of(call.timeout_ms),
    });
}

// Gives the order under way to the ranks once no step is in flight, and ends it when all have
// answered.
void Scheduler::settle_memory(TurnOutput& out) {
    MemoryBook::Job* job = memory_.job();
    if (job == nullptr) return;
    if (!job->is_sent) {
        if (!in_flight_.empty()) return;
        job->is_sent = true;
        if (job->action == MemoryAction::kRelease) {
            if (has(job->tags, MemoryTag::kKvCache)) {
                CHECK(running_.empty());
                cache_.evict(cache_.num_nodes(), pages_);
            }
            if (has(job->tags, MemoryTag::kWeights)) retained_.reset();
        }
        out.workers.emplace_back(memory_.order());
        return;
    }
    if (!memory_.have_all_answered()) return;
    // Weights that one rank has let go are gone, whatever comes of the rest of the order.
    const bool is_discard = job->action == MemoryAction::kRelease && !job->keep_weights &&
                            job->num_done > 0 && has(job->tags, MemoryTag::kWeights);
    if (is_discard && weights_ == Weights::kWhole) weights_ = Weights::kAwaited;
    if (job->failure && !job->is_turned_back) {
        memory_.turn_back();
        out.workers.emplace_back(memory_.order());
        return;
    }
    const MemoryBook::Job done = memory_.finish();
    if (has(done.tags, MemoryTag::kWeights)) {
        are_weights_kept_ =
            !memory_.is_resident(MemoryTag::kWeights) && done.keep_weights && !is_discard;
        // A rank that could not go back may release without keeping when a later resume fails.
        const bool may_be_lost = !memory_.is_resident(MemoryTag::kWeights) && !are_weights_kept_;
        if (may_be_lost && weights_ == Weights::kWhole) weights_ = Weights::kAwaited;
    }
    if (!done.is_answered) answer_memory(done.call, done.failure, /*was_done=*/false, out);
}

void Scheduler::hear_memory(const WorkerMemoryDone& answer) {
    if (!memory_.add(answer)) ++num_late_;
}

void Scheduler::answer_memory(
    CallId call, std::optional<Error> error, bool was_done, TurnOutput& out
) const {
    MemoryPart part{
        .call = call,
        .replica = config_.replica,
        .was_done = was_done,
        .tags = memory_.totals(),
        .has_weights = weights_ == Weights::kWhole,
    };
    if (error) {
        part.code = name_of(error->code);
        part.message = std::move(error->message);
    }
    out.tokenizer.emplace_back(std::move(part));
}

// A call about memory is told that it is late. An order that was not given is taken back; one that
// was stands, and is carried out when the ranks answer.
void Scheduler::end_late_memory_call(TurnOutput& out) {
    MemoryBook::Job* job = memory_.job();
    if (job == nullptr || job->is_answered || now_ < job->deadline) return;
    const std::string_view phase = name_of(job->action);
    if (!job->is_sent) {
        const MemoryBook::Job late = memory_.cancel();
        return answer_memory(
            late.call,
            make_error(ErrorCode::kDeadlineExceeded, "phase {}: {}", phase, step_in_flight()),
            /*was_done=*/false,
            out
        );
    }
    job->is_answered = true;
    answer_memory(
        job->call,
        make_error(
            ErrorCode::kDeadlineExceeded,
            "phase {}: no answer from {}; it is done when they answer",
            phase,
            memory_.who_is_missing()
        ),
        /*was_done=*/false,
        out
    );
}

// Why nothing can be generated, or nothing.
std::optional<Error> Scheduler::why_idle() const {
    if (weights_ == Weights::kTorn) {
        return Error{
            ErrorCode::kFailedPrecondition,
            "the weights are torn: a direct update failed half-way; nothing is generated until the "
            "next complete update"};
    }
    if (!memory_.is_all_resident()) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "{}; nothing is generated until it is resumed",
            memory_.what_is_missing()
        );
    }
    if (weights_ == Weights::kAwaited) {
        return Error{
            ErrorCode::kFailedPrecondition,
            "there are no weights: none came yet, or they were released and not kept; nothing is "
            "generated until the next complete update"};
    }
    return std::nullopt;
}

Error Scheduler::not_ready() const {
    return make_error(
        ErrorCode::kUnavailable,
        "replica {} is loading; no word yet from {}",
        raw(config_.replica),
        workers_.who_is_missing()
    );
}

}  // namespace pitstop::scheduler
