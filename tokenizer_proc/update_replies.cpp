// The answers to callers of UpdateCoordinator.
#include "tokenizer_proc/update_coordinator.h"

#include <algorithm>
#include <utility>

namespace pitstop::tokenizer {
namespace {

std::string list_of(const std::vector<Rank>& ranks) {
    std::vector<std::int32_t> numbers;
    for (const Rank rank : ranks) numbers.push_back(raw(rank));
    return fmt::format("{}", fmt::join(numbers, ", "));
}

}  // namespace

messages::UpdateState UpdateCoordinator::state() const {
    if (is_collecting()) return messages::UpdateState::kCollecting;
    if (is_torn_) return messages::UpdateState::kTorn;
    const messages::UpdateState state = messages::state_of(phase());
    if (state != messages::UpdateState::kServing || has_weights()) return state;
    return messages::UpdateState::kAwaitingWeights;
}

std::string UpdateCoordinator::who_is_missing() const {
    std::string names;
    for (const std::size_t i : job_->round.silent()) {
        std::string who = "scheduler_proc";  // the scheduler would have reported what it waits for
        if (!job_->awaited[i].empty()) who = "rank " + list_of(job_->awaited[i]);
        names += fmt::format("{}replica {} ({})", names.empty() ? "" : ", ", i, who);
    }
    return names;
}

// Returns an answer with the present state of the engine.
messages::UpdateReply UpdateCoordinator::reply_now(const Caller& caller) const {
    messages::UpdateReply reply;
    reply.call = caller.call;
    reply.state = state();
    reply.epoch = version_.epoch;
    reply.label = version_.label;
    reply.digest = version_.digest;
    return reply;
}

void UpdateCoordinator::refuse(Caller caller, Error error, Out& out) const {
    messages::UpdateReply reply = reply_now(caller);
    if (caller.may_be_part) out.part_refused = error;
    reply.verdict = std::move(error);
    out.replies.emplace_back(std::move(caller), std::move(reply));
}

// Answers the caller of the current job, if one still waits.
void UpdateCoordinator::reply(TimePoint now, std::optional<Error> error, Out& out) {
    Job& job = *job_;
    if (!job.caller) return;
    messages::UpdateReply reply;
    reply.call = job.caller->call;
    reply.ok = !error;
    if (error) {
        reply.verdict = *error;
        // An ordered commit cannot be cancelled, whichever replica does not answer.
        const bool is_ordered = phase() == messages::UpdatePhase::kCommitting;
        if (job.is_collection && is_ordered) {
            reply.verdict.message +=
                fmt::format("; the {} calls may take effect yet", job.num_buckets);
        } else if (job.is_collection) {
            reply.verdict.message +=
                fmt::format("; none of the {} calls takes effect", job.num_buckets);
        }
    }
    if (!error) reply.verdict.message = std::exchange(job.note, {});
    reply.state = state();
    const bool is_about_stage =
        is_staged() || (job.is_of_adapter() && phase() == messages::UpdatePhase::kCommitted);
    reply.adapter = job.spec.adapter;
    if (is_collecting()) {
        reply.verdict.message = fmt::format(
            "received, checked and staged, {} calls so far; {}",
            job.num_buckets,
            job.spec.partial
                ? std::string("they take effect together, when generation goes on")
                : fmt::format("they take effect with the last of {} missing tensors", num_missing())
        );
    } else if (is_open()) {
        reply.session = static_cast<std::uint64_t>(job.id);
    }
    reply.epoch = is_about_stage ? job.new_epoch : version_.epoch;
    reply.label = is_about_stage ? job.label : version_.label;
    reply.digest = is_about_stage ? job.digest : version_.digest;
    messages::UpdateSeconds& spent = reply.seconds;
    for (const messages::ReplicaOutcome& replica : job.outcomes) {
        for (const messages::RankOutcome& rank : replica.ranks) {
            reply.bytes += rank.bytes;
            if (rank.stage.sum() > spent.stage.sum()) spent.stage = rank.stage;
        }
        spent.pause_s = std::max(spent.pause_s, replica.pause_s);
        spent.commit_s = std::max(spent.commit_s, replica.commit_s);
    }
    if (job.last_prepared > job.begun) spent.stage_s = seconds(job.last_prepared - job.begun);
    if (job.commit_ordered > job.last_prepared)
        spent.vote_s = seconds(job.commit_ordered - job.last_prepared);
    spent.total_s = seconds(now - job.started);
    reply.replicas = job.outcomes;
    out.replies.emplace_back(*std::move(job.caller), std::move(reply));
    job.caller.reset();
}

}  // namespace pitstop::tokenizer
