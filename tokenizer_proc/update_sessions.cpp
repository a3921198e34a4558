// The calls of sessions: the caller that owns a session, and the answers to other callers.
#include "messages/sparse_buckets.h"
#include "tokenizer_proc/ended_sessions.h"
#include "tokenizer_proc/update_coordinator.h"

#include <fmt/format.h>

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

// A bucket is a part of the session's version, so it cannot declare a version of its own.
bool declares_version(const messages::UpdateSpec& spec) {
    return spec.mode != messages::UpdateMode::kStaged || spec.epoch || !spec.manifest.empty() ||
           !spec.digest.empty() || !spec.base_digest.empty();
}

// Returns why a call that names no session is no bucket of this one, or nothing. A call that names
// no adapter joins the session of one.
std::optional<std::string> why_no_bucket(
    const messages::UpdateSpec& part, const TreeUpdate& update
) {
    const messages::UpdateSpec& session = update.spec();
    if (part.adapter.empty() || part.adapter == session.adapter) return std::nullopt;
    return fmt::format(
        "a call for adapter '{}' is no bucket of {}{}; commit or drop that session first",
        part.adapter,
        update.describe(),
        session.adapter.empty() ? ", which is of the model's weights" : ""
    );
}

// Only the session's begin says what its adapter is.
bool declares_adapter(const messages::UpdateSpec& part) {
    return !part.adapter_config.empty() || !part.adapter_config_digest.empty() ||
           part.adapter_pinned || part.adapter_policy != messages::AdapterPolicy::kFinish;
}

}  // namespace

// Returns why a call of `session` (0: any) cannot be made now, or nothing. An open session may be
// filled and committed; a staged update may only be committed. Any caller may drop either one.
std::optional<Error> UpdateCoordinator::not_at(std::uint64_t session, For what) const {
    const TreeUpdate* update = current();
    if (session != 0 && (update == nullptr || session != update->number())) {
        std::string message = driver_.ended().end_of(session).value_or(
            fmt::format("session {} has ended or never existed", session)
        );
        if (update != nullptr) message += fmt::format("; {} is under way", update->describe());
        return refused(std::move(message));
    }
    if (session == 0 && update != nullptr && update->calls().has_taken_over() && what != For::kDrop)
        return update->calls().must_be_named(update->number());
    if (is_open() || (is_staged() && what != For::kFill)) return std::nullopt;
    if (update != nullptr && !update->is_idle()) return update->call_under_way();
    const std::string_view why = what == For::kFill ? "no session is open" : "nothing is staged";
    if (update == nullptr) return refused(fmt::format("{}, and no calls are collected", why));
    return refused(
        fmt::format("{}; {} is staged, and can be committed or dropped", why, update->describe())
    );
}

std::string UpdateCoordinator::adapter_at(std::uint64_t session) const {
    const TreeUpdate* update = current();
    if (update != nullptr && (session == 0 || session == update->number()))
        return update->spec().adapter;
    return driver_.ended().adapter_of(session);
}

// ---- calls ----

void UpdateCoordinator::handle(
    TimePoint now, Caller caller, const messages::UpdateBucket& call, Out& out
) {
    caller.adapter = adapter_at(call.session);
    using Names = SessionCalls::Names;
    if (auto error = not_at(call.session, For::kFill)) {
        caller.may_be_part = false;  // no update is open, so the call is a part of none
        return driver_.refuse(std::move(caller), *std::move(error), out);
    }
    if (call.session == 0 && is_collecting()) {
        // The bucket may be from the trainer of the lost session. The collection would then have
        // it, but lack the trainer's other calls.
        if (const std::optional<std::string> loss = driver_.ended().tell_loss(now)) {
            caller.may_be_part = !current()->calls().is_of_another_version(call.label);
            return driver_.refuse(std::move(caller), lost(*loss), out);
        }
    }
    const Names names = call.session != 0 ? Names::kSession : Names::kAny;
    fill(now, {std::move(caller), call.timeout_ms, call.label, call.source, names}, out);
}

bool UpdateCoordinator::take_unnamed(
    TimePoint now, Caller caller, const messages::UpdateWeights& call, Out& out
) {
    const TreeUpdate* update = current();
    // The refused call may be another trainer's, which has begun no session. A call for an adapter
    // is a part of that adapter's update only.
    const std::string& adapter = call.update.adapter;
    caller.adapter = adapter;
    const bool is_of_another =
        (is_collecting() && update->calls().is_of_another_version(call.update.label)) ||
        (!adapter.empty() && !is_of(adapter));
    caller.may_be_part =
        !is_of_another && !(update != nullptr && update->calls().is_unnamed_refused());
    if (update == nullptr || !update->calls().is_unnamed()) {
        const std::optional<std::string> loss = driver_.ended().tell_loss(now, adapter);
        if (loss) driver_.refuse(std::move(caller), lost(*loss), out);
        return loss.has_value();
    }
    if (caller.adapter.empty()) caller.adapter = update->spec().adapter;
    if (auto why_not = why_no_bucket(call.update, *update)) {
        driver_.refuse(std::move(caller), refused(*std::move(why_not)), out);
    } else if (auto error = update->not_unnamed()) {
        driver_.refuse(std::move(caller), *std::move(error), out);
    } else if (declares_version(call.update) || declares_adapter(call.update)) {
        Error declares = refused(fmt::format(
            "a call that would be a bucket of {} declares a mode, an epoch, a digest or an "
            "adapter's settings of its own; leave these out",
            update->describe()
        ));
        driver_.refuse(std::move(caller), std::move(declares), out);
    } else {
        const messages::UpdateSpec& part = call.update;
        constexpr auto kNothing = SessionCalls::Names::kNothing;
        fill(now, {std::move(caller), call.timeout_ms, part.label, part.source, kNothing}, out);
    }
    return true;
}

// REQUIRES: a session is open.
void UpdateCoordinator::fill(TimePoint now, Bucket bucket, Out& out) {
    TreeUpdate& update = driver_.update();
    if (auto problem = messages::problem_of_bucket(update.spec(), bucket.source))
        return driver_.refuse(std::move(bucket.caller), refused(*std::move(problem)), out);
    // A trainer whose buckets all name the session may give its version another label.
    const bool is_checked = update.may_be_mixed() || bucket.names != SessionCalls::Names::kSession;
    if (is_checked && update.calls().is_of_another_version(bucket.label)) {
        if (update.may_be_mixed())
            return refuse_mixture(now, std::move(bucket.caller), bucket.label, out);
        bucket.caller.may_be_part = false;
        return driver_.refuse(
            std::move(bucket.caller), update.calls().stranger(bucket.label, update.name()), out
        );
    }
    update.wait_for(now, std::move(bucket.caller), bucket.timeout_ms);
    update.count_bucket(bucket.names, std::move(bucket.label));
    out.orders.push_back(update.fill(now, std::move(bucket.source)));
}

void UpdateCoordinator::handle(
    TimePoint now, Caller caller, const messages::CommitWeights& call, Out& out
) {
    caller.adapter = adapter_at(call.session);
    if (auto error = not_committable(now, call))
        return driver_.refuse(std::move(caller), *std::move(error), out);
    TreeUpdate& update = driver_.update();
    if (update.is_of_adapter() &&
        call.kv_policy.value_or(messages::KvPolicy::kKeep) != messages::KvPolicy::kKeep) {
        return driver_.refuse(
            std::move(caller),
            {ErrorCode::kInvalidArgument,
             "kv_policy is of the model's weights; an adapter's requests continue by the "
             "adapter_policy of its begin_update or stage"},
            out
        );
    }
    update.wait_for(now, std::move(caller), call.timeout_ms);
    if (call.kv_policy) update.set_kv_policy(*call.kv_policy);
    update.commit_when_staged();
    if (update.is_staged()) return out.orders.push_back(update.ready(now));
    std::string label = call.label.empty() ? update.calls().bucket_label() : call.label;
    if (label.empty() && update.is_collection()) label = update.spec().label;
    out.orders.push_back(update.finish(now, std::move(label), call.digest));
}

std::optional<Error> UpdateCoordinator::not_committable(
    TimePoint now, const messages::CommitWeights& call
) {
    if (!call.unnamed || call.session != 0) return not_at(call.session, For::kCommit);
    if (is_busy() && current()->calls().is_unnamed()) return current()->not_unnamed();
    EndedSessions& ended = driver_.ended();
    if (std::optional<std::string> loss = ended.loss(now)) {
        // The session's trainer now knows of the loss, and ends it.
        if (!ended.forget_told_losses()) std::ignore = ended.tell_loss(now);
        return lost(*loss);
    }
    return refused("no session is open for calls that name none; begin one first");
}

void UpdateCoordinator::handle(
    TimePoint now, Caller caller, const messages::DropStage& call, Out& out
) {
    caller.adapter = adapter_at(call.session);
    const bool is_unnamed = call.unnamed && call.session == 0;
    if (is_unnamed && (!is_busy() || !current()->calls().is_unnamed()))
        return drop_nothing(now, std::move(caller), out);
    if (auto error = is_unnamed ? current()->not_unnamed() : not_at(call.session, For::kDrop))
        return driver_.refuse(std::move(caller), *std::move(error), out);
    TreeUpdate& update = driver_.update();
    update.wait_for(now, std::move(caller), call.timeout_ms);
    update.add_note(update.describe() + " was dropped");
    driver_.drop(now, Error{ErrorCode::kAborted, ""}, out);
}

// Answers a drop when an unnamed call can mean no session.
void UpdateCoordinator::drop_nothing(TimePoint now, Caller caller, Out& out) {
    if (is_busy()) {
        Error is_named = refused(fmt::format(
            "{} was not begun for calls that name no session; name {} to drop it",
            current()->describe(),
            current()->number()
        ));
        return driver_.refuse(std::move(caller), std::move(is_named), out);
    }
    const std::string loss = driver_.ended().loss(now).value_or("no session is open");
    // The session's trainer knows of the loss, and drops it.
    std::ignore = driver_.ended().forget_told_losses();
    messages::UpdateReply reply = driver_.reply_now(caller);
    reply.ok = true;
    reply.verdict = messages::Verdict::done(loss);
    out.replies.emplace_back(std::move(caller), std::move(reply));
}

std::optional<EndedSessions::Ended> UpdateCoordinator::unnamed_at_stake() const {
    // A session that is being dropped is lost, too, unless a call ends the session: that call's
    // caller learns of its failure.
    const TreeUpdate* update = current();
    const bool is_open_for_them = update != nullptr && update->calls().is_unnamed() &&
                                  update->has_been_open() &&
                                  !update->calls().is_unnamed_refused() &&
                                  !update->calls().are_all_named() && update->is_to_stay_open();
    if (!is_open_for_them) return driver_.ended().lost();
    return EndedSessions::Ended{
        .session = update->number(),
        .what = update->describe(),
        .how = "",
        .adapter = update->spec().adapter};
}

}  // namespace pitstop::tokenizer
