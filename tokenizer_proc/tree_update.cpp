#include "tokenizer_proc/tree_update.h"

#include "tokenizer_proc/timeout.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::tokenizer {

void TreeUpdate::open_session(const messages::BeginUpdate& call) {
    kind_ = Kind::kSession;
    calls_.open(spec().label);
    calls_.begin(call);
    idle_timeout_ = timeout_or(kSessionIdle, call.idle_timeout_ms);
}

void TreeUpdate::open_collection(TimePoint now, messages::WeightSource first) {
    kind_ = Kind::kCollection;
    collecting_since_ = now;
    calls_.open(spec().label);
    idle_timeout_ = kStagedHoldMax;
    first_source_ = std::move(first);
}

// ---- what the update is ----

std::string TreeUpdate::name() const {
    const std::string_view kind = is_collection() ? "collected update"
                                  : is_session()  ? "session"
                                                  : "update";
    return fmt::format("{} {}", kind, number());
}

std::string TreeUpdate::describe() const {
    const std::string label =
        spec().label.empty() ? "no label" : fmt::format("label '{}'", spec().label);
    const std::string of =
        is_of_adapter() ? fmt::format(" of adapter '{}'", spec().adapter) : std::string();
    if (is_collection())
        return fmt::format(
            "{} ({} calls, {} bytes)", name(), calls_.num_buckets(), answers_.bytes()
        );
    if (is_session()) {
        return fmt::format(
            "{}{} ({}{}, {} buckets, {} bytes)",
            name(),
            of,
            calls_.holder().empty() ? "" : fmt::format("of {}, ", calls_.holder()),
            label,
            calls_.num_buckets(),
            answers_.bytes()
        );
    }
    return fmt::format("{}{} ({})", name(), of, label);
}

// ---- the phase of the update ----

bool TreeUpdate::is_receiving() const {
    return caller_ && (caller_->what == messages::UpdateWeights::kType ||
                       caller_->what == messages::UpdateBucket::kType);
}

bool TreeUpdate::may_be_torn() const {
    // an adapter's update does not change the model's weights
    if (is_of_adapter()) return false;
    if (is_committing()) return true;
    const bool is_overwritten = spec().mode == messages::UpdateMode::kDirect &&
                                (phase() == messages::UpdatePhase::kOverwriting ||
                                 phase() == messages::UpdatePhase::kReady);
    return is_overwritten && answers_.may_have_written();
}

// ---- the calls that the update consists of ----

void TreeUpdate::wait_for(TimePoint now, UpdateCaller caller, std::int64_t timeout_ms) {
    caller_ = std::move(caller);
    called_at_ = now;
    deadline_ = now + timeout_or(kCallTimeout, timeout_ms);
    caller_deadline_ = deadline_;
}

void TreeUpdate::count_bucket(SessionCalls::Names names, std::string label) {
    calls_.count(names);
    if (is_collection()) {
        name_by_call(label);
    } else {
        calls_.label_bucket(std::move(label));
    }
}

void TreeUpdate::name_by_call(const std::string& label) {
    if (calls_.name(label)) start_.spec.label = label;
}

// ---- refusals ----

Error TreeUpdate::busy(TimePoint now) const {
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
        seconds(now - idle_since_.value_or(now)),
        seconds(deadline_ - now),
        is_collection() ? "continue, " : ""
    );
}

Error TreeUpdate::call_under_way() const {
    return make_error(
        ErrorCode::kFailedPrecondition,
        "a call of {} is under way, in phase {}; wait for its answer",
        describe(),
        phase_name()
    );
}

std::optional<Error> TreeUpdate::not_unnamed() const {
    if (calls_.is_unnamed_refused()) return calls_.must_be_named(number());
    if (!is_open()) return call_under_way();
    return std::nullopt;
}

// ---- one session takes over from another ----

std::optional<TreeUpdate::Successor> TreeUpdate::take_successor(TimePoint now) {
    if (!successor_ || !caller_) return std::nullopt;
    Successor successor{
        .call = *std::exchange(successor_, std::nullopt),
        .caller = take_caller(),
        .note = describe() + " was dropped for it",
        .took_over = name(),
        .is_unnamed_refused = calls_.is_unnamed() || is_collection()};
    const auto left = std::chrono::floor<std::chrono::milliseconds>(caller_deadline_ - now);
    successor.call.timeout_ms = std::max<std::int64_t>(1, left.count());
    return successor;
}

void TreeUpdate::take_over(Successor predecessor) {
    note_ = std::move(predecessor.note);
    if (predecessor.is_unnamed_refused || !calls_.is_unnamed()) note_ += "; its calls must name it";
    calls_.take_over(std::move(predecessor.took_over), predecessor.is_unnamed_refused);
}

// ---- orders ----

// Replicas give up a little before the door, so that the answer names the silent rank.
std::int64_t TreeUpdate::time_of_replicas(TimePoint now) const {
    const auto all = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - now);
    const auto head_start = std::min(all / 10, std::chrono::milliseconds(1000));
    return std::max<std::int64_t>(1, (all - head_start).count());
}

ReplicaOrder TreeUpdate::begin(TimePoint now) {
    if (is_rollback()) {
        answers_.ask(messages::UpdateOrder::kStage);
        return messages::UpdateRollback{
            id(), new_epoch(), spec().adapter, spec().adapter_policy, time_of_replicas(now)};
    }
    return spec().mode == messages::UpdateMode::kDirect ? ready(now) : stage(now);
}

ReplicaOrder TreeUpdate::stage(TimePoint now) {
    answers_.forget_outcomes();
    answers_.ask(is_to_stay_open() ? messages::UpdateOrder::kOpen : messages::UpdateOrder::kStage);
    return messages::UpdateStage{id(), spec(), new_epoch(), time_of_replicas(now)};
}

ReplicaOrder TreeUpdate::fill(TimePoint now, messages::WeightSource source) {
    answers_.ask(messages::UpdateOrder::kFill);
    return messages::UpdateFill{
        id(), calls_.next_bucket(), std::move(source), time_of_replicas(now)};
}

ReplicaOrder TreeUpdate::finish(TimePoint now, std::string label, std::string digest) {
    start_.goal = messages::UpdatePhase::kCommitted;
    answers_.ask(messages::UpdateOrder::kStage);
    return messages::UpdateFinish{id(), std::move(label), std::move(digest), time_of_replicas(now)};
}

ReplicaOrder TreeUpdate::ready(TimePoint now) {
    answers_.ask(messages::UpdateOrder::kReady);
    return messages::UpdateReady{id(), spec().kv_policy, time_of_replicas(now)};
}

ReplicaOrder TreeUpdate::commit(TimePoint now) {
    commit_ordered_ = now;
    answers_.ask(messages::UpdateOrder::kCommit);
    return messages::UpdateCommit{id()};
}

ReplicaOrder TreeUpdate::drop(TimePoint now, Error why) {
    const bool is_torn = may_be_torn();
    failure_ = std::move(why);
    failure_.code = answers_.refusal_code().value_or(failure_.code);
    // The caller is answered in time even if a replica is silent; the door still waits for it.
    deadline_ = now + kDropTimeout;
    if (caller_) {
        deadline_ = std::clamp<TimePoint>(caller_deadline_, now + kDropGrace, now + kDropTimeout);
    }
    answers_.ask(messages::UpdateOrder::kDrop);
    return messages::UpdateDrop{id(), failure_.message, is_torn};
}

// ---- answers ----

bool TreeUpdate::record_awaited(messages::UpdateWaits waits) {
    if (!is_committing() && !is_dropping()) return false;
    return answers_.record_awaited(std::move(waits));
}

void TreeUpdate::record_prepared(TimePoint now) {
    label_ = answers_.first().label;
    digest_ = answers_.first().digest;
    config_digest_ = answers_.first().adapter_config_digest;
    last_prepared_ = now;
}

void TreeUpdate::record_idle(TimePoint now) {
    idle_since_ = now;
    deadline_ = now + (is_staged() ? Duration(kStagedHoldMax) : idle_timeout_);
}

std::optional<LostCollection> TreeUpdate::loss(const std::string& why) const {
    if (!is_collection() || is_loss_told_ || is_dropping()) return std::nullopt;
    return LostCollection{
        calls_.num_buckets(),
        answers_.bytes(),
        why,
        is_to_commit() && caller_ ? caller_->peer : std::string(),
        calls_.called_label()};
}

// ---- answers to callers ----

messages::UpdateReply TreeUpdate::reply(
    TimePoint now,
    const std::optional<Error>& error,
    messages::UpdateState state,
    const ServedVersion& serving
) {
    messages::UpdateReply reply;
    reply.call = caller_->call;
    reply.ok = !error;
    if (error) {
        reply.verdict = *error;
        // A commit that is ordered cannot be cancelled, even if replicas do not answer.
        if (is_collection() && is_committing()) {
            reply.verdict.message +=
                fmt::format("; the {} calls may still take effect", calls_.num_buckets());
        } else if (is_collection()) {
            reply.verdict.message +=
                fmt::format("; none of the {} calls takes effect", calls_.num_buckets());
        }
    } else {
        reply.verdict.message = std::exchange(note_, {});
    }
    reply.state = state;
    reply.adapter = spec().adapter;
    if (is_collecting()) {
        reply.verdict.message = fmt::format(
            "{} calls so far are received, checked and staged; {}",
            calls_.num_buckets(),
            spec().partial
                ? std::string("they take effect together, when generation goes on")
                : fmt::format(
                      "they take effect with the last of {} missing tensors", answers_.num_missing()
                  )
        );
    } else if (is_open()) {
        reply.session = number();
    }
    const bool is_about_stage =
        is_staged() || (is_of_adapter() && phase() == messages::UpdatePhase::kCommitted);
    if (is_about_stage) {
        reply.epoch = new_epoch();
        reply.label = label_;
        reply.digest = digest_;
        reply.config_digest = config_digest_;
    } else if (!is_of_adapter()) {  // an adapter's reply names no version of the model
        reply.epoch = serving.epoch;
        reply.label = serving.label;
        reply.digest = serving.digest;
    }
    answers_.add_to(reply);
    messages::UpdateSeconds& spent = reply.seconds;
    if (last_prepared_ > begun_) spent.stage_s = seconds(last_prepared_ - begun_);
    if (commit_ordered_ > last_prepared_) spent.vote_s = seconds(commit_ordered_ - last_prepared_);
    spent.total_s = seconds(now - called_at_);
    return reply;
}

std::optional<messages::CollectingStatus> TreeUpdate::collecting(TimePoint now) const {
    if (!is_collection() || is_dropping()) return std::nullopt;
    messages::CollectingStatus status;
    status.calls = calls_.num_buckets();
    status.age_s = seconds(now - collecting_since_);
    status.must_be_complete = !spec().partial;
    status.bytes = answers_.bytes();
    if (const messages::RankOutcome* most = answers_.most_missing()) {
        status.num_missing = most->num_missing;
        status.missing = most->missing;
    }
    return status;
}

std::optional<messages::SessionStatus> TreeUpdate::session(TimePoint now) const {
    if (is_collection() || (!is_session() && !is_staged())) return std::nullopt;
    messages::SessionStatus status{
        .session = number(),
        .holder = calls_.holder(),
        .label = spec().label,
        .unnamed = calls_.is_unnamed() && !calls_.is_unnamed_refused(),
        .is_busy = !is_idle(),
        .calls = calls_.num_buckets(),
        .bytes = answers_.bytes(),
        .adapter = spec().adapter,
    };
    if (is_idle()) {
        status.idle_s = seconds(now - idle_since_.value_or(now));
        status.ends_in_s = seconds(deadline_ - now);
    }
    return status;
}

}  // namespace pitstop::tokenizer
