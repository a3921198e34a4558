// The calls of sessions: which caller owns a session, and what other callers are told.
#include "tokenizer_proc/ended_sessions.h"
#include "tokenizer_proc/timeout.h"
#include "tokenizer_proc/update_coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

namespace pitstop::tokenizer {
namespace {

Error refused(std::string message) { return {ErrorCode::kFailedPrecondition, std::move(message)}; }

Error lost(const std::string& loss) {
    return refused(
        loss + ". None of it takes effect, and neither does this call; begin one first, or drop it"
    );
}

// A bucket is a part of the session's version, and cannot declare a version of its own.
bool declares_version(const messages::UpdateSpec& spec) {
    return spec.mode != messages::UpdateMode::kStaged || spec.epoch || !spec.manifest.empty() ||
           !spec.digest.empty() || !spec.base_digest.empty();
}

}  // namespace

// ---- the current update ----

std::int64_t UpdateCoordinator::bytes_staged() const {
    std::int64_t bytes = 0;
    for (const messages::ReplicaOutcome& replica : job_->outcomes) {
        for (const messages::RankOutcome& rank : replica.ranks) bytes += rank.bytes;
    }
    return bytes;
}

// REQUIRES: an update is in progress.
std::string UpdateCoordinator::name_of_job() const {
    const std::string_view kind = job_->is_collection ? "collected update"
                                  : job_->is_session  ? "session"
                                                      : "update";
    return fmt::format("{} {}", kind, static_cast<std::uint64_t>(job_->id));
}

// REQUIRES: an update is in progress.
std::string UpdateCoordinator::describe() const {
    const Job& job = *job_;
    const std::string label =
        job.spec.label.empty() ? "no label" : fmt::format("label '{}'", job.spec.label);
    if (job.is_collection) {
        return fmt::format(
            "{} ({} calls, {} bytes)", name_of_job(), job.num_buckets, bytes_staged()
        );
    }
    if (job.is_session) {
        return fmt::format(
            "{} ({}{}, {} buckets, {} bytes)",
            name_of_job(),
            job.holder.empty() ? "" : fmt::format("of {}, ", job.holder),
            label,
            job.num_buckets,
            bytes_staged()
        );
    }
    return fmt::format("{} ({})", name_of_job(), label);
}

// The refusal of any other update, with what to do. REQUIRES: an update is in progress.
Error UpdateCoordinator::busy(TimePoint now) const {
    if (!is_idle()) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "{} is under way, in phase {}; wait for it",
            describe(),
            phase_name()
        );
    }
    return make_error(
        ErrorCode::kFailedPrecondition,
        "{} is {}, idle for {:.1f} s, and is dropped automatically in {:.1f} s; {}commit or drop "
        "it, wait, or begin with take_over if its trainer has ended",
        describe(),
        is_open() ? "open" : "staged",
        seconds(now - job_->idle_since.value_or(now)),
        seconds(job_->deadline - now),
        job_->is_collection ? "continue, " : ""
    );
}

std::optional<messages::SessionStatus> UpdateCoordinator::session(TimePoint now) const {
    if (!job_ || job_->is_collection || (!job_->is_session && !is_staged())) return std::nullopt;
    messages::SessionStatus status{
        .session = static_cast<std::uint64_t>(job_->id),
        .holder = job_->holder,
        .label = job_->spec.label,
        .unnamed = job_->is_unnamed && !job_->is_unnamed_refused,
        .is_busy = !is_idle(),
        .calls = job_->num_buckets,
        .bytes = bytes_staged(),
    };
    if (is_idle()) {
        status.idle_s = seconds(now - job_->idle_since.value_or(now));
        status.ends_in_s = seconds(job_->deadline - now);
    }
    return status;
}

// ---- the owner of a call ----

// Returns why a call of `session` (0: any) cannot be made now, or nothing. A session that is open
// may be filled and committed; a staged update may only be committed. Any caller may drop either.
std::optional<Error> UpdateCoordinator::not_at(std::uint64_t session, For what) const {
    const std::uint64_t under_way = job_ ? static_cast<std::uint64_t>(job_->id) : 0;
    if (session != 0 && session != under_way) {
        std::string message = ended_.end_of(session).value_or(
            fmt::format("session {} has ended or never existed", session)
        );
        if (job_) message += fmt::format("; {} is under way", describe());
        return refused(std::move(message));
    }
    if (session == 0 && job_ && !job_->took_over.empty() && what != For::kDrop)
        return must_be_named();
    if (is_open() || (is_staged() && what != For::kFill)) return std::nullopt;
    if (job_ && !is_idle()) return call_under_way();
    const std::string_view why = what == For::kFill ? "no session is open" : "nothing is staged";
    if (!job_) return refused(fmt::format("{}, and no calls are collected", why));
    return refused(fmt::format("{}; {} is staged, and can be committed or dropped", why, describe())
    );
}

// REQUIRES: the session took over from another update.
Error UpdateCoordinator::must_be_named() const {
    const auto id = static_cast<std::uint64_t>(job_->id);
    return refused(fmt::format(
        "session {} took over from {}, whose calls might still come; so calls that name no session "
        "are refused. Name it in each: session {}",
        id,
        job_->took_over,
        id
    ));
}

Error UpdateCoordinator::call_under_way() const {
    return make_error(
        ErrorCode::kFailedPrecondition,
        "a call of {} is under way, in phase {}; wait for its answer",
        describe(),
        phase_name()
    );
}

// Returns why a call without a session cannot belong to the current one, or nothing. REQUIRES: the
// session was begun for such calls.
std::optional<Error> UpdateCoordinator::not_unnamed() const {
    if (job_->is_unnamed_refused) return must_be_named();
    if (!is_open()) return call_under_way();
    return std::nullopt;
}

// ---- calls ----

void UpdateCoordinator::handle(
    TimePoint now, Caller caller, const messages::BeginUpdate& call, Out& out
) {
    messages::UpdateSpec spec = call.update;
    // If no version serves that a part could change, all tensors must have arrived by the commit.
    if (must_be_complete()) spec.partial = false;
    if (auto error = problem_of(spec)) return refuse(std::move(caller), *error, out);
    if (job_ && call.take_over && is_idle()) return take_over(now, std::move(caller), call, out);
    if (job_) return refuse(std::move(caller), busy(now), out);
    begin(
        now,
        {std::move(caller), call.timeout_ms, std::move(spec), messages::UpdatePhase::kOpen},
        out
    );
    job_->is_session = true;
    job_->called_label = job_->spec.label;
    job_->is_unnamed = call.unnamed;
    job_->holder = call.holder;
    job_->idle_timeout = timeout_or(kSessionIdle, call.idle_timeout_ms);
}

// Drops what is open or staged, and then begins the session.
void UpdateCoordinator::take_over(
    TimePoint now, Caller caller, const messages::BeginUpdate& call, Out& out
) {
    begin_waiting(now, std::move(caller), call.timeout_ms);
    job_->successor = call;
    const std::string who = call.holder.empty() ? "another trainer" : call.holder;
    begin_drop(now, {ErrorCode::kAborted, who + " took over"}, out);
}

// Begins the session whose predecessor has been dropped. REQUIRES: a successor waits.
void UpdateCoordinator::begin_successor(TimePoint now, Out& out) {
    messages::BeginUpdate call = *std::move(job_->successor);
    Caller caller = *std::move(job_->caller);
    const auto left = std::chrono::floor<std::chrono::milliseconds>(job_->caller_deadline - now);
    call.timeout_ms = std::max<std::int64_t>(1, left.count());
    std::string note = describe() + " was dropped for it";
    std::string old = name_of_job();
    const bool is_unnamed_refused = job_->is_unnamed || job_->is_collection;
    job_.reset();
    handle(now, std::move(caller), call, out);
    // the weights were torn meanwhile, and a session needs a version to build on
    if (!job_) return;
    job_->took_over = std::move(old);
    job_->is_unnamed_refused = is_unnamed_refused;
    if (is_unnamed_refused || !call.unnamed) note += "; its calls must name it";
    job_->note = std::move(note);
}

void UpdateCoordinator::handle(
    TimePoint now, Caller caller, const messages::UpdateBucket& call, Out& out
) {
    if (auto error = not_at(call.session, For::kFill)) {
        caller.may_be_part = false;  // not a part of an open update
        return refuse(std::move(caller), *error, out);
    }
    if (call.session == 0 && is_collecting()) {
        // The trainer of the lost session may have sent this bucket. The collection would have it,
        // and lack the trainer's other calls.
        if (const std::optional<std::string> loss = ended_.tell_loss(now)) {
            caller.may_be_part = !is_of_another_version(call.label);
            return refuse(std::move(caller), lost(*loss), out);
        }
    }
    const Names names = call.session != 0 ? Names::kSession : Names::kAny;
    fill(now, {std::move(caller), call.timeout_ms, call.label, call.source, names}, out);
}

bool UpdateCoordinator::take_unnamed(
    TimePoint now, Caller caller, const messages::UpdateWeights& call, Out& out
) {
    // The call refused for a lost session may be another trainer's, which has begun no session.
    const bool is_of_another = is_collecting() && is_of_another_version(call.update.label);
    caller.may_be_part = !is_of_another && !(job_ && job_->is_unnamed_refused);
    if (!job_ || !job_->is_unnamed) {
        const std::optional<std::string> loss = ended_.tell_loss(now);
        if (loss) refuse(caller, lost(*loss), out);
        return loss.has_value();
    }
    if (auto error = not_unnamed()) {
        refuse(caller, *std::move(error), out);
    } else if (declares_version(call.update)) {
        refuse(
            caller,
            refused(fmt::format(
                "it would be a bucket of {}, and declares a mode, an epoch or a digest of its own",
                describe()
            )),
            out
        );
    } else {
        const messages::UpdateSpec& part = call.update;
        fill(now, {caller, call.timeout_ms, part.label, part.source, Names::kNothing}, out);
    }
    return true;
}

void UpdateCoordinator::fill(TimePoint now, Bucket bucket, Out& out) {
    if (bucket.source.format == messages::TensorFormat::kSparse && job_->spec.base_digest.empty()) {
        return refuse(
            std::move(bucket.caller),
            refused("a sparse bucket changes the version it was made for; the session named no "
                    "base_digest"),
            out
        );
    }
    const bool may_be_mixed = job_->is_collection || job_->num_nameless > 0;
    // The trainer of a session that every bucket names may give its version another label.
    const bool is_checked = may_be_mixed || bucket.names != Names::kSession;
    if (is_checked && is_of_another_version(bucket.label)) {
        if (!may_be_mixed) return refuse_stranger(std::move(bucket.caller), bucket.label, out);
        return refuse_mixture(now, std::move(bucket.caller), bucket.label, out);
    }
    begin_waiting(now, std::move(bucket.caller), bucket.timeout_ms);
    if (bucket.names != Names::kSession) ++job_->num_nameless;
    if (bucket.names == Names::kNothing) ++job_->num_unnamed;
    if (job_->is_collection) {
        name_by_call(bucket.label);
    } else if (!bucket.label.empty()) {
        job_->called_label = job_->bucket_label = std::move(bucket.label);
    }
    order_fill(now, std::move(bucket.source), out);
}

void UpdateCoordinator::handle(
    TimePoint now, Caller caller, const messages::CommitWeights& call, Out& out
) {
    if (auto error = not_committable(now, call)) return refuse(std::move(caller), *error, out);
    if (job_->is_of_adapter() &&
        call.kv_policy.value_or(messages::KvPolicy::kKeep) != messages::KvPolicy::kKeep) {
        return refuse(
            std::move(caller),
            {ErrorCode::kInvalidArgument,
             "kv_policy is of the model's weights; an adapter's requests continue by the "
             "adapter_policy of its begin_update or stage"},
            out
        );
    }
    begin_waiting(now, std::move(caller), call.timeout_ms);
    if (call.kv_policy) job_->spec.kv_policy = *call.kv_policy;
    job_->goal = messages::UpdatePhase::kCommitted;
    if (is_staged()) return order_ready(now, out);
    std::string label = call.label.empty() ? job_->bucket_label : call.label;
    if (label.empty() && job_->is_collection) label = job_->spec.label;
    order_finish(now, label, call.digest, out);
}

std::optional<Error> UpdateCoordinator::not_committable(
    TimePoint now, const messages::CommitWeights& call
) {
    if (!call.unnamed || call.session != 0) return not_at(call.session, For::kCommit);
    if (job_ && job_->is_unnamed) return not_unnamed();
    if (std::optional<std::string> loss = ended_.loss(now)) {
        ended_.forget_told_loss();  // the session's trainer knows of the loss, and ends it
        std::ignore = ended_.tell_loss(now);
        return lost(*loss);
    }
    return refused("no session is open for calls that name none; begin one first");
}

void UpdateCoordinator::handle(
    TimePoint now, Caller caller, const messages::DropStage& call, Out& out
) {
    const bool is_unnamed = call.unnamed && call.session == 0;
    if (is_unnamed && (!job_ || !job_->is_unnamed))
        return drop_nothing(now, std::move(caller), out);
    if (auto error = is_unnamed ? not_unnamed() : not_at(call.session, For::kDrop))
        return refuse(std::move(caller), *error, out);
    begin_waiting(now, std::move(caller), call.timeout_ms);
    job_->note = describe() + " was dropped";
    begin_drop(now, Error{ErrorCode::kAborted, ""}, out);
}

// Answers a drop when there is no session that an unnamed call could mean.
void UpdateCoordinator::drop_nothing(TimePoint now, Caller caller, Out& out) {
    if (job_) {
        return refuse(
            std::move(caller),
            refused(fmt::format(
                "{} was not begun for calls that name no session; name {} to drop it",
                describe(),
                static_cast<std::uint64_t>(job_->id)
            )),
            out
        );
    }
    const std::string loss = ended_.loss(now).value_or("no session is open");
    ended_.forget_told_loss();  // the session's trainer knows of the loss, and drops it
    messages::UpdateReply reply = reply_now(caller);
    reply.ok = true;
    reply.verdict = messages::Verdict::done(loss);
    out.replies.emplace_back(std::move(caller), std::move(reply));
}

// ---- the end ----

// Records how the session ended, for callers that continue it.
void UpdateCoordinator::end_session(const std::string& how, Loss loss) {
    const Job& job = *job_;
    if (!job.is_session || !job.idle_since) return;  // no caller was told that it is open
    ended_.record({.session = static_cast<std::uint64_t>(job.id), .what = describe(), .how = how});
    if (loss == Loss::kOfUnnamedCalls && job.is_unnamed && !are_all_named()) ended_.record_loss();
}

std::optional<EndedSessions::Ended> UpdateCoordinator::unnamed_at_stake() const {
    // A session that is being dropped is lost, too. The failure of a call that ends the session is
    // known to its caller.
    const bool is_open_for_them = job_ && job_->is_unnamed && job_->idle_since &&
                                  !job_->is_unnamed_refused && !are_all_named() &&
                                  job_->goal == messages::UpdatePhase::kOpen;
    if (!is_open_for_them) return ended_.lost();
    return EndedSessions::Ended{
        .session = static_cast<std::uint64_t>(job_->id), .what = describe(), .how = ""};
}

}  // namespace pitstop::tokenizer
