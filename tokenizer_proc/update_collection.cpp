// Makes one update of calls without a session (UpdateCoordinator::collect).
//
// Trainers send a model in any number of calls between a pause and its end. None of the states
// between those calls is meant to serve, and a label or digest of one would name an undeclared
// mixture. So the calls become the buckets of a session that no call opened.
#include "tokenizer_proc/update_coordinator.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::tokenizer {

bool UpdateCoordinator::may_collect(const messages::UpdateWeights& call) {
    const messages::UpdateSpec& spec = call.update;
    return spec.partial && spec.mode == messages::UpdateMode::kStaged && !spec.epoch &&
           spec.manifest.empty() && spec.digest.empty() && spec.base_digest.empty() &&
           spec.source.kind != messages::SourceKind::kBuckets;
}

void UpdateCoordinator::collect(
    TimePoint now, Caller caller, const messages::UpdateWeights& call, Brings brings, Out& out
) {
    if (is_collecting()) {
        if (is_of_another_version(call.update.label))
            return refuse_mixture(now, std::move(caller), call.update.label, out);
        begin_waiting(now, std::move(caller), call.timeout_ms);
        name_by_call(call.update.label);
        job_->spec.kv_policy = call.update.kv_policy;
        return order_fill(now, call.update.source, out);
    }
    messages::UpdateSpec spec = call.update;
    spec.partial = !must_be_complete() && brings == Brings::kParts;
    if (auto error = refusal(now, &spec)) return refuse(std::move(caller), *error, out);
    spec.source = messages::WeightSource{.kind = messages::SourceKind::kBuckets};
    begin(
        now,
        {std::move(caller), call.timeout_ms, std::move(spec), messages::UpdatePhase::kOpen},
        out
    );
    job_->is_collection = true;
    job_->collecting_since = now;
    job_->called_label = job_->spec.label;
    job_->idle_timeout = kStagedHoldMax;
    job_->first_source = call.update.source;
}

// REQUIRES: is_open().
bool UpdateCoordinator::is_of_another_version(const std::string& label) const {
    return !label.empty() && !job_->called_label.empty() && label != job_->called_label;
}

// The first call with a label names the version; a later set_weight_label may rename it.
void UpdateCoordinator::name_by_call(const std::string& label) {
    if (label.empty() || label == job_->called_label) return;
    job_->spec.label = job_->called_label = label;
}

// Drops the collection if two trainers send at once, or one began after another had died: otherwise
// a mixture of two models would become a version. REQUIRES: is_of_another_version(label).
void UpdateCoordinator::refuse_mixture(
    TimePoint now, Caller caller, const std::string& label, Out& out
) {
    const std::string calls = job_->is_collection
                                  ? fmt::format("{} collected calls", job_->num_buckets)
                                  : fmt::format("{} calls of {}", job_->num_buckets, name_of_job());
    Error error = make_error(
        ErrorCode::kAborted,
        "a call for a version with label '{}' came amid {} for one with label '{}'; neither takes "
        "effect",
        label,
        calls,
        job_->called_label
    );
    begin_drop(now, error, out);
    refuse(std::move(caller), std::move(error), out);
}

// All buckets so far named the session, so they are its trainer's: only this call is refused.
// REQUIRES: is_of_another_version(label).
void UpdateCoordinator::refuse_stranger(Caller caller, const std::string& label, Out& out) const {
    caller.may_be_part = false;
    refuse(
        std::move(caller),
        make_error(
            ErrorCode::kFailedPrecondition,
            "a call for a version with label '{}' names no session, and {} is open, for one with "
            "label '{}'; name the session in the call if it is a part of that",
            label,
            name_of_job(),
            job_->called_label
        ),
        out
    );
}

std::optional<Error> UpdateCoordinator::problem_of_late_part(const messages::UpdateWeights& call
) const {
    if (!collected_ || collected_->epoch != version_.epoch || !may_collect(call) ||
        call.update.label != collected_->label) {
        return std::nullopt;
    }
    return make_error(
        ErrorCode::kAborted,
        "the version with label '{}' was published as epoch {} with the calls that came before; "
        "this call names the same label, and is no part of it. Pause or begin, and send every "
        "tensor again, or name another label",
        collected_->label,
        raw(collected_->epoch)
    );
}

bool UpdateCoordinator::may_lack_part() const {
    return job_ && (job_->is_collection || (job_->is_unnamed && !job_->is_unnamed_refused)) &&
           job_->goal == messages::UpdatePhase::kOpen &&
           phase() != messages::UpdatePhase::kDropping;
}

void UpdateCoordinator::lose_part(TimePoint now, const Error& why, Out& out) {
    if (!may_lack_part()) return;
    begin_drop(
        now,
        make_error(
            ErrorCode::kAborted,
            "a call that may be a part of the version was refused: {}",
            why.message
        ),
        out
    );
}

void UpdateCoordinator::handle(
    TimePoint now, Caller caller, const messages::RefusedPart& call, Out& out
) {
    if (may_lack_part() && !job_->caller) {
        begin_waiting(now, std::move(caller), call.timeout_ms);
    } else {
        messages::UpdateReply reply = reply_now(caller);
        reply.ok = true;
        out.replies.emplace_back(std::move(caller), std::move(reply));
    }
    lose_part(now, {ErrorCode::kFailedPrecondition, call.why}, out);
}

void UpdateCoordinator::drop_collection(TimePoint now, Error why, Telling telling, Out& out) {
    job_->is_loss_told = telling == Telling::kDone;
    begin_drop(now, std::move(why), out);
}

bool UpdateCoordinator::is_receiving() const {
    return job_ && job_->caller &&
           (job_->caller->what == messages::UpdateWeights::kType ||
            job_->caller->what == messages::UpdateBucket::kType);
}

// The number of tensors that some rank still waits for.
std::int64_t UpdateCoordinator::num_missing() const {
    std::int64_t most = 0;
    for (const messages::ReplicaOutcome& replica : job_->outcomes) {
        for (const messages::RankOutcome& rank : replica.ranks)
            most = std::max(most, rank.num_missing);
    }
    return most;
}

std::optional<messages::CollectingStatus> UpdateCoordinator::collecting(TimePoint now) const {
    if (!job_ || !job_->is_collection || is_dropping()) return std::nullopt;
    messages::CollectingStatus status;
    status.calls = job_->num_buckets;
    status.age_s = seconds(now - job_->collecting_since);
    status.must_be_complete = !job_->spec.partial;
    status.bytes = bytes_staged();
    for (const messages::ReplicaOutcome& replica : job_->outcomes) {
        for (const messages::RankOutcome& rank : replica.ranks) {
            if (rank.num_missing <= status.num_missing) continue;
            status.num_missing = rank.num_missing;
            status.missing = rank.missing;
        }
    }
    return status;
}

}  // namespace pitstop::tokenizer
