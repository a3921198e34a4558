#include "tokenizer_proc/collected_update.h"

#include "base/log.h"

#include <algorithm>
#include <utility>

namespace pitstop::tokenizer {

void CollectedUpdate::react(TimePoint now, AdminUpdates::Events events) {
    if (events.lost) {
        const auto closing = closing_ ? std::optional(closing_->then.caller.peer) : std::nullopt;
        lost_calls_.record(now, *events.lost, closing);
    }
    if (events.has_made_whole) lost_calls_.end();
    lost_calls_.forget_labels_of_version();
    for (const std::string& note : events.notes) spdlog::warn("{}", note);
    if (events.has_begun_session) lost_calls_.end_missed_part();
    if (events.own && closing_) closing_->outcome = std::move(events.own);
    // A commit that was ordered may never end. Its caller gets the outcome at the deadline.
    if (closing_ && (closing_->outcome || !coordinator().is_busy())) finish_closing(now);
    if (events.part_refused) lose_part(now, *events.part_refused);
    start_held(now);
    bring_back_next(now);
}

void CollectedUpdate::bring_back_next(TimePoint now) {
    updates_.bring_back_next(now, [&](const messages::UpdateWeights& load) {
        drive(now, [&](UpdateCoordinator& updates, UpdateOutput& out) {
            updates.handle(now, {.what = ReturningAdapters::kWhat}, load, out);
        });
    });
}

Unfinished CollectedUpdate::unfinished() const {
    using Calls = Unfinished::Calls;
    Unfinished unfinished;
    if (coordinator().has_undecided_collection() || lost_calls_.is_untold()) {
        unfinished.calls = Calls::kCollected;
    } else if (standings_.is_any_held() || lost_calls_.is_any()) {
        unfinished.calls = Calls::kStandStill;
    }
    if (auto session = coordinator().unnamed_at_stake()) {
        unfinished.session = session->session;
        unfinished.session_adapter = std::move(session->adapter);
        unfinished.session_what = std::move(session->what);
    }
    return unfinished;
}

// ---- time ----

void CollectedUpdate::tick(TimePoint now) {
    lost_calls_.expire(now);
    drive(now, [&](UpdateCoordinator& updates, UpdateOutput& out) { updates.tick(now, out); });
    expire_held(now);
    start_held(now);
}

TimePoint CollectedUpdate::next_deadline() const {
    TimePoint first = coordinator().next_deadline().value_or(TimePoint::max());
    first = std::min(first, held_.next_deadline());
    if (closing_ && !closing_->then.caller.peer.empty())
        first = std::min(first, closing_->then.deadline + HeldCall::kGrace);
    return first;
}

void CollectedUpdate::fail_all(const Error& error) {
    is_starting_held_ = true;  // no further call starts
    drive(TimePoint{}, [&](UpdateCoordinator& updates, UpdateOutput& out) {
        updates.fail(error.message, out);
        out.orders.clear();  // no process is left to run them
    });
    if (closing_) out_.answer_error(closing_->then.caller, error);
    closing_.reset();
    for (const HeldCall& call : held_.take_all()) out_.answer_error(call.caller, error);
}

// ---- calls that wait ----

// Calls with weights and unloads wait for earlier ones, as in SGLang. A call that lets generation
// continue waits for calls that are being collected, and for a commit of collected calls by another
// call.
bool CollectedUpdate::must_wait(const HeldCall& call) const {
    const bool has_earlier = held_.is_any_with_weights();
    if (call.brings_weights && may_be_too_late()) return false;
    if (call.takes_turn()) return !held_.is_empty() || must_wait_for_update(call);
    return must_wait_for_update(call) ||
           (publishes(call) && has_earlier && !coordinator().is_draining());
}

// Returns whether an update whose calls name no session is being ended. A call that arrives now may
// belong to that update, but would become a separate update. So the call is refused at once.
bool CollectedUpdate::may_be_too_late() const {
    return (closing_ && closing_->how == Closing::kCommit) || coordinator().is_ending_unnamed();
}

bool CollectedUpdate::publishes(const HeldCall& call) {
    return call.what == messages::ContinueGeneration::kType ||
           call.what == messages::ResumeMemory::kType;
}

bool CollectedUpdate::must_wait_for_update(const HeldCall& call) const {
    if (call.takes_turn())
        return coordinator().is_receiving() || coordinator().is_ending() || closing_.has_value();
    // The drain waits for requests that a pause has frozen; a continue must not wait for the drain.
    if (!publishes(call) || coordinator().is_draining()) return false;
    if (closing_ || coordinator().is_committing_collection()) return true;
    if (!coordinator().has_collection()) return false;
    // The end of the current release or resume determines whether generation can continue.
    return coordinator().is_receiving() || calls_.is_memory_moving();
}

// Starts the calls that no longer need to wait, in the order of arrival.
void CollectedUpdate::start_held(TimePoint now) {
    if (is_starting_held_) return;  // starting a call calls this function again
    is_starting_held_ = true;
    while (!held_.is_empty() && !must_wait_for_update(held_.first())) {
        const HeldCall call = held_.take_first();
        // The call has too little time left for a commit, which would fail and lose the collection.
        const bool is_too_late_to_publish =
            publishes(call) && now >= call.deadline && coordinator().has_collection();
        if (call.is_late(now) || is_too_late_to_publish) {
            tell_late(now, call);
        } else if (const Result<> done = call.start(now); !done) {
            out_.answer_error(call.caller, done.error());
        }
    }
    is_starting_held_ = false;
}

void CollectedUpdate::tell_late(TimePoint now, const HeldCall& call) {
    Error error = make_error(
        ErrorCode::kDeadlineExceeded,
        "{} waited for an update that has not ended (its state: {})",
        call.what,
        name_of(coordinator().state())
    );
    updates_.record_failure(now, call.what, call.adapter, error);
    const bool is_of_another = !call.adapter.empty() && !coordinator().is_of(call.adapter);
    if (call.may_be_part && !is_of_another) lose_part(now, error);
    out_.answer_error(call.caller, error);
}

void CollectedUpdate::expire_held(TimePoint now) {
    for (const HeldCall& call : held_.take_late(now)) tell_late(now, call);
    if (!closing_ || closing_->then.caller.peer.empty() || !closing_->then.is_late(now)) return;
    tell_late(now, closing_->then);
    closing_->then.caller.peer.clear();  // the commit continues, but its caller was answered
}

// ---- the effects of calls on a collection ----

bool CollectedUpdate::joins(const messages::UpdateWeights& message) const {
    if (closing_ || !UpdateCoordinator::may_collect(message)) return false;
    return coordinator().has_collection() || standings_.is_any_held() ||
           coordinator().must_be_complete();
}

// After a loss only a whole model takes effect: a part would lack earlier calls, which were
// answered as collected.
void CollectedUpdate::join(
    TimePoint now, const std::string& peer, const messages::UpdateWeights& message
) {
    using Brings = UpdateCoordinator::Brings;
    const Brings brings = lost_calls_.is_any() ? Brings::kAllTensors : Brings::kParts;
    drive(now, [&](UpdateCoordinator& updates, UpdateOutput& out) {
        const UpdateCoordinator::Caller caller{
            peer, message.call, messages::UpdateWeights::kType, /*may_be_part=*/true};
        updates.collect(now, caller, message, brings, out);
    });
}

void CollectedUpdate::name(const std::string& peer, const messages::SetWeightLabel& message) {
    messages::LabelReply reply;
    if (message.abort_all) {
        reply.verdict = make_error(
            ErrorCode::kFailedPrecondition,
            "calls without a session are being collected: a label for them is not accepted with "
            "abort_all; abort or continue first"
        );
        return out_.answer({peer, message.call}, std::move(reply));
    }
    updates_.name_collection(message.label);
    reply.ok = true;
    reply.verdict.message = "the collected update gets the label when it takes effect";
    for (int i = 0; i < num_replicas_; ++i) {
        reply.parts.push_back(
            {.replica = ReplicaId{i},
             .epoch = coordinator().version().epoch,
             .old_label = coordinator().version().label,
             .label = coordinator().version().label}
        );
    }
    out_.answer({peer, message.call}, std::move(reply));
}

bool CollectedUpdate::is_replaced_by(const messages::UpdateSpec& spec) const {
    return !closing_ && spec.adapter.empty() && coordinator().is_collecting() &&
           coordinator().must_be_complete() && !coordinator().problem_of(spec);
}

// Refuses a continue while some replica's last report says that the replica cannot continue.
// Otherwise, if another call removes the obstacle, the replica would continue without the collected
// calls.
Result<> CollectedUpdate::check_none_is_collected(TimePoint now) const {
    const auto collecting = coordinator().collecting(now);
    if (!collecting) return Ok{};
    return make_error(
        ErrorCode::kFailedPrecondition,
        "{}, by the replicas' last report: {} collected calls take effect when generation goes on. "
        "{}, then continue",
        coordinator().is_torn() ? "the weights are torn" : "memory is released",
        collecting->calls,
        coordinator().is_torn() ? "Send a complete update" : "Resume it"
    );
}

// Returns false for a continue that a replica would refuse, which must not publish anything.
bool CollectedUpdate::lets_generation_go_on(const messages::ContinueGeneration&) const {
    return !standings_.is_any_released() && !coordinator().is_torn();
}

bool CollectedUpdate::lets_generation_go_on(const messages::ResumeMemory& call) const {
    return !standings_.is_any_paused() && standings_.is_any_released() &&
           standings_.are_just_released(call.tags) && !coordinator().must_be_complete();
}

// Commits or drops the collection, and then starts the call, within the call's deadline.
Result<> CollectedUpdate::close(TimePoint now, Closing how, HeldCall then) {
    const std::int64_t timeout_ms = std::max<std::int64_t>(
        1, std::chrono::floor<std::chrono::milliseconds>(then.deadline - now).count()
    );
    closing_ = {
        .how = how, .then = std::move(then), .num_calls = coordinator().collecting(now)->calls};
    drive(now, [&](UpdateCoordinator& updates, UpdateOutput& out) {
        if (how == Closing::kDrop) {
            const messages::DropStage call{.timeout_ms = timeout_ms};
            updates.handle(now, {.what = messages::DropStage::kType}, call, out);
        } else {
            const messages::CommitWeights call{.timeout_ms = timeout_ms};
            updates.handle(now, {.what = messages::CommitWeights::kType}, call, out);
        }
    });
    return Ok{};
}

// Adds the update's outcome to the call's answer. If the update failed, the failure is the answer,
// so that generation does not continue with other weights than the trainer sent. Repeating the call
// continues with the previous version.
void CollectedUpdate::finish_closing(TimePoint now) {
    const ClosingCall closing = *std::exchange(closing_, std::nullopt);
    const AdminCaller& caller = closing.then.caller;
    if (caller.peer.empty()) return;  // the call was late, and was answered
    if (closing.how == Closing::kDrop) {
        std::string text = fmt::format("{} collected calls were dropped for it", closing.num_calls);
        out_.add_note(caller, {.text = std::move(text)});
    }
    if (closing.how == Closing::kCommit && closing.outcome) {
        const messages::UpdateReply& outcome = *closing.outcome;
        if (answer_failed_commit(closing)) return;
        out_.add_note(
            caller,
            {.text = fmt::format(
                 "the collected update took effect: epoch {}, label '{}', digest {}, {} calls, {} "
                 "bytes",
                 raw(outcome.epoch),
                 outcome.label,
                 outcome.digest,
                 closing.num_calls,
                 outcome.bytes
             ),
             .update =
                 messages::CollectedVersion{
                     .epoch = outcome.epoch,
                     .label = outcome.label,
                     .digest = outcome.digest,
                     .calls = closing.num_calls,
                     .bytes = outcome.bytes}}
        );
    }
    if (const Result<> done = closing.then.start(now); !done)
        out_.answer_error(caller, done.error());
}

bool CollectedUpdate::answer_failed_commit(const ClosingCall& closing) {
    const messages::UpdateReply& outcome = *closing.outcome;
    if (outcome.ok) return false;
    Error error = make_error(
        outcome.verdict.error().code, "the collected update failed: {}", outcome.verdict.message
    );
    if (coordinator().is_committing_collection()) {
        error = make_error(
            ErrorCode::kDeadlineExceeded,
            "the collected update is still being committed, and may take effect: ask "
            "status before this call is made again ({})",
            outcome.verdict.message
        );
    }
    out_.answer_error(closing.then.caller, error);
    return true;
}

// Handles a replica's report that it runs again or has stopped. If a pause expired, the trainer
// that paused may have died, and its calls so far may be half of a model.
void CollectedUpdate::handle_standing(TimePoint now, messages::ReplicaStanding standing) {
    if (!standings_.has(standing.replica)) return;
    const ReplicaId replica = standing.replica;
    const bool was_held = standings_.is_any_held();
    updates_.set_has_weights(replica, standing.has_weights);
    const bool is_expired =
        standings_.record(std::move(standing)) == ReplicaStandings::News::kPauseExpired;
    // The trainer has been told of the loss, and continues with the previous version.
    if (was_held && !is_expired && !standings_.is_any_held()) lost_calls_.end_if_told();
    if (is_expired && !lost_calls_.is_any() && !coordinator().has_collection() &&
        !standings_.is_any_held())
        lost_calls_.record_standstill(
            now, fmt::format("max_pause_s ended the pause of replica {}", raw(replica))
        );
    if (closing_ || !coordinator().has_collection() || coordinator().must_be_complete()) return;
    if (!is_expired && standings_.is_any_held()) return;
    Error why = make_error(
        ErrorCode::kAborted,
        "{} of replica {}",
        is_expired ? "max_pause_s ended the pause" : "generation went on during the call",
        raw(replica)
    );
    drive(now, [&](UpdateCoordinator& updates, UpdateOutput& out) {
        updates.drop_collection(now, std::move(why), UpdateCoordinator::Telling::kDue, out);
    });
}

// ---- lost calls ----

// Called when a call is refused that may be a part of a version: its trainer may ignore answers.
void CollectedUpdate::lose_part(TimePoint now, const Error& why) {
    drive(now, [&](UpdateCoordinator& updates, UpdateOutput& out) {
        updates.lose_part(now, why, out);
    });
    miss_part(now, why);
}

// Called when a part is refused before any call was collected: during the standstill, the trainer's
// other calls could become a version without this part.
void CollectedUpdate::miss_part(TimePoint now, const Error& why) {
    const bool is_other = closing_ || coordinator().is_ending() || coordinator().must_be_complete();
    if (is_other || lost_calls_.is_any() || !standings_.is_any_held()) return;
    lost_calls_.record_missed_part(now, why);
}

// The pause and the released memory ended with the previous tree, so later parts would become
// updates of their own.
void CollectedUpdate::begin_after(TimePoint now, const Restart& restart) {
    if (restart.why.empty()) return;
    const Unfinished& before = restart.before;
    if (before.calls == Unfinished::Calls::kStandStill)
        lost_calls_.record_standstill(now, restart.why);
    if (before.calls == Unfinished::Calls::kCollected)
        lost_calls_.record_of_previous_tree(now, restart.why);
    if (before.session != 0) {
        updates_.record_lost(
            {.session = before.session,
             .what = before.session_what,
             .how = "was dropped: " + restart.why,
             .adapter = before.session_adapter}
        );
        spdlog::warn("{} was dropped: {}", before.session_what, restart.why);
    }
}

Result<> CollectedUpdate::check_loss(TimePoint now, const std::string& peer) {
    Result<> known = lost_calls_.check_continue(now, peer);
    if (!known && coordinator().has_collection()) {
        drive(now, [&](UpdateCoordinator& updates, UpdateOutput& out) {
            using Telling = UpdateCoordinator::Telling;
            updates.drop_collection(now, known.error(), Telling::kDone, out);
        });
    }
    return known;
}

// Describes calls that were collected under an earlier pause, or lost.
std::string CollectedUpdate::note_for_pause(TimePoint now) {
    if (const auto collecting = coordinator().collecting(now)) {
        return fmt::format(
            "{} calls without a session are collected, the first {:.1f} s ago",
            collecting->calls,
            collecting->age_s
        );
    }
    return lost_calls_.note_for_pause();
}

}  // namespace pitstop::tokenizer
