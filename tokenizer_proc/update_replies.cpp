// What callers of UpdateCoordinator are told.
#include "tokenizer_proc/update_coordinator.h"

#include <algorithm>
#include <chrono>

namespace pitstop::tokenizer {
namespace {

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

std::string list_of(const std::vector<Rank>& ranks) {
    std::vector<std::int32_t> numbers;
    for (const Rank rank : ranks) numbers.push_back(raw(rank));
    return fmt::format("{}", fmt::join(numbers, ", "));
}

}  // namespace

std::string_view UpdateCoordinator::phase_name() const {
    switch (phase_) {
        case Phase::kIdle:
            return "idle";
        case Phase::kOpening:
            return "open_stage";
        case Phase::kOpen:
            return "open";
        case Phase::kFilling:
            return "fill";
        case Phase::kStaging:
            return "stage";
        case Phase::kStaged:
            return "staged";
        case Phase::kReadying:
            return "ready";
        case Phase::kCommitting:
            return "commit";
        case Phase::kDropping:
            return "drop";
    }
    return "idle";
}

std::string_view UpdateCoordinator::state() const {
    if (is_collecting()) return "collecting";
    if (is_torn_) return "torn";
    if (phase_ != Phase::kIdle) return phase_name();
    return has_weights() ? "serving" : "awaiting_weights";
}

std::string UpdateCoordinator::who_is_missing() const {
    std::string names;
    for (std::size_t i = 0; i < job_->answers.size(); ++i) {
        if (job_->answers[i]) continue;
        std::string who = "scheduler_proc";  // which would have said whom it waits for
        if (!job_->awaited[i].empty()) who = "rank " + list_of(job_->awaited[i]);
        names += fmt::format("{}replica {} ({})", names.empty() ? "" : ", ", i, who);
    }
    return names;
}

void UpdateCoordinator::refuse(Caller caller, Error error, Out& out) const {
    messages::UpdateReply reply;
    reply.call = caller.call;
    reply.code = name_of(error.code);
    reply.message = std::move(error.message);
    reply.state = state();
    reply.epoch = version_.epoch;
    reply.label = version_.label;
    reply.digest = version_.digest;
    out.replies.emplace_back(std::move(caller), std::move(reply));
}

// Answers the caller of the job under way, if somebody still waits.
void UpdateCoordinator::reply(TimePoint now, std::optional<Error> error, Out& out) {
    Job& job = *job_;
    if (!job.caller) return;
    messages::UpdateReply reply;
    reply.call = job.caller->call;
    reply.ok = !error;
    if (error) {
        reply.code = name_of(error->code);
        reply.message = std::move(error->message);
        if (job.is_collection)
            reply.message += fmt::format("; none of the {} calls takes effect", job.num_buckets);
    }
    reply.state = state();
    const bool is_about_stage = phase_ == Phase::kStaged;
    if (is_collecting()) {
        reply.message = fmt::format(
            "received, checked and staged, {} calls so far; {}",
            job.num_buckets,
            job.spec.partial
                ? std::string("they take effect together, before the next call that needs them")
                : fmt::format("they take effect with the last of {} missing tensors", num_missing())
        );
    } else if (phase_ == Phase::kOpen) {
        reply.session = static_cast<std::uint64_t>(job.id);
    }
    reply.epoch = is_about_stage ? job.new_epoch : version_.epoch;
    reply.label = is_about_stage ? job.label : version_.label;
    reply.digest = is_about_stage ? job.digest : version_.digest;
    for (const messages::ReplicaOutcome& replica : job.outcomes) {
        for (const messages::RankOutcome& rank : replica.ranks) {
            reply.bytes += rank.bytes;
            reply.receive_s = std::max(reply.receive_s, rank.receive_s);
            reply.verify_s = std::max(reply.verify_s, rank.verify_s);
        }
        reply.pause_s = std::max(reply.pause_s, replica.pause_s);
        reply.commit_s = std::max(reply.commit_s, replica.commit_s);
    }
    if (job.commit_ordered > job.last_prepared)
        reply.vote_s = seconds(job.commit_ordered - job.last_prepared);
    reply.total_s = seconds(now - job.started);
    reply.replicas = job.outcomes;
    out.replies.emplace_back(*std::move(job.caller), std::move(reply));
    job.caller.reset();
}

}  // namespace pitstop::tokenizer
