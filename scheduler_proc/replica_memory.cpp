#include "scheduler_proc/replica_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pitstop::scheduler {
namespace {

bool has(const std::vector<messages::MemoryTag>& tags, messages::MemoryTag tag) {
    return std::ranges::find(tags, tag) != tags.end();
}

}  // namespace

// Each order uses two numbers: the second is for undoing it.
CallId ReplicaMemory::next_order() { return CallId{++num_orders_ * 2}; }

std::optional<messages::MemoryPart> ReplicaMemory::release(
    const messages::ReleaseMemory& call, TimePoint now, std::optional<Error> why_not
) {
    const std::vector<messages::MemoryTag> tags = tags_to_release(call.tags);
    bool was_done = false;
    std::optional<Error> problem =
        book_.problem_of(messages::MemoryAction::kRelease, tags, was_done);
    if (!problem) problem = std::move(why_not);
    if (problem) return answer(call.call, std::move(problem), was_done);
    book_.begin({
        .call = call.call,
        .order = next_order(),
        .action = messages::MemoryAction::kRelease,
        .tags = tags,
        .keep_weights = call.keep_weights,
        .deadline = deadline_of(now, call.timeout_ms),
    });
    return std::nullopt;
}

std::optional<messages::MemoryPart> ReplicaMemory::resume(
    const messages::ResumeMemory& call, TimePoint now, std::optional<Error> why_not
) {
    const std::vector<messages::MemoryTag> tags =
        book_.tags_for(messages::MemoryAction::kResume, call.tags);
    bool was_done = false;
    std::optional<Error> problem = std::move(why_not);
    if (!problem) problem = book_.problem_of(messages::MemoryAction::kResume, tags, was_done);
    if (problem) return answer(call.call, std::move(problem), was_done);
    book_.begin({
        .call = call.call,
        .order = next_order(),
        .action = messages::MemoryAction::kResume,
        .tags = tags,
        .keep_weights = are_weights_kept_,
        .deadline = deadline_of(now, call.timeout_ms),
    });
    return std::nullopt;
}

std::string ReplicaMemory::what_is_missing() const {
    const bool is_lost = !loss_.empty() && !is_resident(messages::MemoryTag::kKvCache);
    return book_.what_is_missing() +
           (is_lost ? fmt::format(" (it was lent to an update and not returned: {})", loss_) : "");
}

void ReplicaMemory::begin_loan(messages::MemoryAction action) {
    loan_ = action == messages::MemoryAction::kRelease ? Loan::kTaking : Loan::kReturning;
    book_.begin({
        .order = next_order(),
        .action = action,
        .tags = {messages::MemoryTag::kKvCache},
        .is_loan = true,
        .is_answered = true,
    });
}

// Memory that could not be lent is still resident, unless a rank could not undo the release. Memory
// that could not be returned counts as released from now on, as if a call had released it.
void ReplicaMemory::finish_loan(const MemoryBook::Job& done, Effects& effects) {
    const bool is_taken = done.action == messages::MemoryAction::kRelease;
    if (is_taken && done.failure) effects.loan_failure = done.failure;
    if (done.failure) loss_ = done.failure->message;
    loan_ = is_taken && !done.failure ? Loan::kLent : Loan::kNone;
}

ReplicaMemory::Effects ReplicaMemory::advance(bool is_still, TurnOutput& out) {
    Effects effects;
    MemoryBook::Job* job = book_.job();
    if (job == nullptr) return effects;
    const bool has_weights = has(job->tags, messages::MemoryTag::kWeights);
    if (!job->is_sent) {
        if (!is_still) return effects;
        job->is_sent = true;
        const bool is_release = job->action == messages::MemoryAction::kRelease;
        effects.releases_kv = is_release && has(job->tags, messages::MemoryTag::kKvCache);
        effects.releases_weights = is_release && has_weights;
        out.workers.emplace_back(book_.order());
        return effects;
    }
    if (!book_.have_all_answered()) return effects;
    // Weights that one rank has discarded are gone, even if the order fails on other ranks.
    const bool is_discard = job->action == messages::MemoryAction::kRelease && !job->keep_weights &&
                            job->num_done > 0 && has_weights;
    effects.loses_weights = is_discard;
    if (job->failure && !job->is_turned_back) {
        book_.turn_back();
        out.workers.emplace_back(book_.order());
        return effects;
    }
    const MemoryBook::Job done = book_.finish();
    if (has_weights) {
        const bool is_away = !book_.is_resident(messages::MemoryTag::kWeights);
        are_weights_kept_ = is_away && done.keep_weights && !is_discard;
        // After a failed undo, a later failed resume may discard weights on some rank.
        if (is_away && !are_weights_kept_) effects.loses_weights = true;
    }
    if (done.is_loan) finish_loan(done, effects);
    if (book_.is_resident(messages::MemoryTag::kKvCache)) loss_.clear();
    if (!done.is_answered) effects.answer = answer(done.call, done.failure, /*was_done=*/false);
    return effects;
}

std::optional<messages::MemoryPart> ReplicaMemory::end_late_call(
    TimePoint now, const std::string& step
) {
    MemoryBook::Job* job = book_.job();
    if (job == nullptr || job->is_answered || now < job->deadline) return std::nullopt;
    const std::string_view phase = name_of(job->action);
    if (!job->is_sent) {
        const MemoryBook::Job late = book_.cancel();
        return answer(
            late.call,
            make_error(ErrorCode::kDeadlineExceeded, "phase {}: {}", phase, step),
            /*was_done=*/false
        );
    }
    job->is_answered = true;
    return answer(
        job->call,
        make_error(
            ErrorCode::kDeadlineExceeded,
            "phase {}: no answer from {}; the call completes when their answers arrive",
            phase,
            book_.who_is_missing()
        ),
        /*was_done=*/false
    );
}

std::optional<TimePoint> ReplicaMemory::next_deadline() const {
    const MemoryBook::Job* job = book_.job();
    if (job == nullptr || job->is_answered) return std::nullopt;
    return job->deadline;
}

messages::MemoryPart ReplicaMemory::answer(CallId call, std::optional<Error> error, bool was_done)
    const {
    messages::MemoryPart part{
        .call = call, .replica = replica_, .was_done = was_done, .tags = book_.totals()};
    // The door must not count lent memory as released, because it is returned without a call.
    for (messages::TagMemory& tag : part.tags) {
        if (tag.tag == messages::MemoryTag::kKvCache && is_on_loan())
            tag.state = messages::MemoryState::kResident;
    }
    if (error) {
        part.verdict = *error;
    }
    return part;
}

}  // namespace pitstop::scheduler
