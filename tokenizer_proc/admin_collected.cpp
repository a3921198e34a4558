// Calls without a session become one update here (docs/weights.md). Other calls wait for that
// update, or for their turn.
#include "base/log.h"
#include "tokenizer_proc/admin.h"

#include <algorithm>
#include <utility>

namespace pitstop::tokenizer {

// ---- calls that wait ----

// Calls with weights wait for earlier ones, as in SGLang. A call that lets generation continue
// waits for the calls that are being collected, and for another call's commit of them.
bool Admin::must_wait(const HeldCall& call) const {
    const bool has_earlier = std::ranges::any_of(held_, &HeldCall::brings_weights);
    if (call.brings_weights)
        return !may_be_too_late() && (!held_.empty() || must_wait_for_update(call));
    return must_wait_for_update(call) ||
           (publishes(call) && has_earlier && !updates_.is_draining());
}

// An update whose calls name no session is being ended. A call that arrives now may be meant for
// that update, and would become an update of its own. So it is refused, and does not wait.
bool Admin::may_be_too_late() const {
    return (closing_ && closing_->how == Closing::kCommit) || updates_.is_ending_unnamed();
}

bool Admin::publishes(const HeldCall& call) {
    return call.what == messages::ContinueGeneration::kType ||
           call.what == messages::ResumeMemory::kType;
}

bool Admin::must_wait_for_update(const HeldCall& call) const {
    if (call.brings_weights)
        return updates_.is_receiving() || updates_.is_ending() || closing_.has_value();
    // Requests that a pause has frozen finish only after a continue: each would wait for the other.
    if (!publishes(call) || updates_.is_draining()) return false;
    if (closing_ || updates_.is_committing_collection()) return true;
    if (!updates_.has_collection()) return false;
    // Whether generation can continue is known once the current release or resume has ended.
    return updates_.is_receiving() || calls_.has<Gathered<messages::MemoryPart>>();
}

Result<> Admin::hold(HeldCall call) {
    if (held_.size() >= kCallsMax) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "{} calls wait for an update already; accepted are {}",
            held_.size(),
            kCallsMax
        );
    }
    std::size_t bytes = call.bytes;
    for (const HeldCall& other : held_) bytes += other.bytes;
    if (!held_.empty() && bytes > kHeldBytesMax) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "{} calls with {} bytes wait for an update already; accepted are {} bytes: wait for "
            "answers",
            held_.size(),
            bytes - call.bytes,
            kHeldBytesMax
        );
    }
    held_.push_back(std::move(call));
    return Ok{};
}

// Starts the calls that no longer need to wait, in the order of arrival.
void Admin::start_held(TimePoint now) {
    if (is_starting_held_) return;  // starting a call leads here again
    is_starting_held_ = true;
    while (!held_.empty()) {
        HeldCall call = std::move(held_.front());
        held_.pop_front();
        if (must_wait_for_update(call)) {
            held_.push_front(std::move(call));
            break;
        }
        // The call has too little time left for a commit, which would fail and lose the collection.
        const bool is_too_late_to_publish =
            publishes(call) && now >= call.deadline && updates_.has_collection();
        if (is_late(now, call) || is_too_late_to_publish) {
            tell_late(now, call);
        } else if (const Result<> done = call.start(now); !done) {
            answer_error(call.caller, done.error());
        }
    }
    is_starting_held_ = false;
}

// A call that lets generation continue may be answered a little late, with the outcome of the
// update that it waits for. A call with weights has not begun, and may wait until its deadline.
bool Admin::is_late(TimePoint now, const HeldCall& call) {
    return now >= call.deadline + (call.brings_weights ? Duration{} : Duration{kHeldGrace});
}

void Admin::tell_late(TimePoint now, const HeldCall& call) {
    Error error = make_error(
        ErrorCode::kDeadlineExceeded,
        "{} waited for an update that has not ended (its state: {})",
        call.what,
        name_of(updates_.state())
    );
    if (call.may_be_part) lose_part(now, error);
    answer_error(call.caller, error);
}

void Admin::expire_held(TimePoint now) {
    std::deque<HeldCall> late;
    std::erase_if(held_, [&](HeldCall& call) {
        if (!is_late(now, call)) return false;
        late.push_back(std::move(call));
        return true;
    });
    for (const HeldCall& call : late) tell_late(now, call);
    if (!closing_ || closing_->then.caller.peer.empty() || !is_late(now, closing_->then)) return;
    tell_late(now, closing_->then);
    closing_->then.caller.peer.clear();  // the commit continues; its caller was answered
}

// ---- what calls do to a collection ----

bool Admin::joins_collection(const messages::UpdateWeights& message) const {
    if (closing_ || !UpdateCoordinator::may_collect(message)) return false;
    return updates_.has_collection() || standings_.is_any_held() || updates_.must_be_complete();
}

// After a loss only a whole model takes effect: earlier calls, which were answered as collected,
// are missing from a part.
Result<> Admin::join_collection(
    TimePoint now, const std::string& peer, const messages::UpdateWeights& message
) {
    using Brings = UpdateCoordinator::Brings;
    const Brings brings = loss_ ? Brings::kAllTensors : Brings::kParts;
    drive(now, [&](UpdateCoordinator::Out& out) {
        const UpdateCoordinator::Caller caller{
            peer, message.call, messages::UpdateWeights::kType, /*may_be_part=*/true};
        updates_.collect(now, caller, message, brings, out);
    });
    return Ok{};
}

void Admin::name_collection(const std::string& peer, const messages::SetWeightLabel& message) {
    messages::LabelReply reply;
    if (message.abort_all) {
        reply.verdict = make_error(
            ErrorCode::kFailedPrecondition,
            "calls without a session are being collected: abort_all is not accepted with a label "
            "for them; abort first, or continue first"
        );
        return answer({peer, message.call}, std::move(reply));
    }
    updates_.name_collection(message.label);
    reply.ok = true;
    reply.verdict.message = "the collected update gets the label when it takes effect";
    for (int i = 0; i < num_replicas_; ++i) {
        reply.parts.push_back(
            {.replica = ReplicaId{i},
             .epoch = version().epoch,
             .old_label = version().label,
             .label = version().label}
        );
    }
    answer({peer, message.call}, std::move(reply));
}

// A replica that was resumed meanwhile would continue without what is collected. So no replica is
// asked while its last report says that it cannot continue.
Result<> Admin::check_none_is_collected(TimePoint now) const {
    const auto collecting = updates_.collecting(now);
    if (!collecting) return Ok{};
    return make_error(
        ErrorCode::kFailedPrecondition,
        "{}, by the replicas' last report: {} collected calls take effect when generation goes on. "
        "{}, then continue",
        updates_.is_torn() ? "the weights are torn" : "memory is released",
        collecting->calls,
        updates_.is_torn() ? "Send a complete update" : "Resume it"
    );
}

// A continue that a replica would refuse publishes nothing.
bool Admin::lets_generation_go_on(const messages::ContinueGeneration&) const {
    return !standings_.is_any_released() && !updates_.is_torn();
}

bool Admin::lets_generation_go_on(const messages::ResumeMemory& call) const {
    return !standings_.is_any_paused() && standings_.is_any_released() &&
           standings_.are_just_released(call.tags) && !updates_.must_be_complete();
}

// Commits or drops the collection, and then starts the call, within the call's deadline.
Result<> Admin::close_collection(TimePoint now, Closing how, HeldCall then) {
    const std::int64_t timeout_ms = std::max<std::int64_t>(
        1, std::chrono::floor<std::chrono::milliseconds>(then.deadline - now).count()
    );
    closing_ = {.how = how, .then = std::move(then), .num_calls = updates_.collecting(now)->calls};
    drive(now, [&](UpdateCoordinator::Out& out) {
        if (how == Closing::kDrop) {
            const messages::DropStage call{.timeout_ms = timeout_ms};
            updates_.handle(now, {.what = messages::DropStage::kType}, call, out);
        } else {
            const messages::CommitWeights call{.timeout_ms = timeout_ms};
            updates_.handle(now, {.what = messages::CommitWeights::kType}, call, out);
        }
    });
    return Ok{};
}

// Adds the update's outcome to the call's answer. If the update failed, that is the answer, so that
// generation does not continue with other weights than were sent. A repeated call continues with
// the previous version.
void Admin::finish_closing(TimePoint now) {
    const ClosingCall closing = *std::exchange(closing_, std::nullopt);
    const AdminCaller& caller = closing.then.caller;
    if (caller.peer.empty()) return;  // it was late
    if (closing.how == Closing::kDrop) {
        notes_[{caller.peer, caller.call}] = {
            .text = fmt::format("{} collected calls were dropped for it", closing.num_calls)};
    }
    if (closing.how == Closing::kCommit && closing.outcome) {
        const messages::UpdateReply& outcome = *closing.outcome;
        if (!outcome.ok && updates_.is_committing_collection()) {
            return answer_error(
                caller,
                make_error(
                    ErrorCode::kDeadlineExceeded,
                    "the collected update is still being committed, and may take effect: ask "
                    "status before this call is made again ({})",
                    outcome.verdict.message
                )
            );
        }
        if (!outcome.ok) {
            return answer_error(
                caller,
                make_error(
                    outcome.verdict.error().code,
                    "the collected update failed: {}",
                    outcome.verdict.message
                )
            );
        }
        notes_[{caller.peer, caller.call}] = {
            .text = fmt::format(
                "the collected update took effect: epoch {}, label '{}', digest {}, {} calls, {} "
                "bytes",
                raw(outcome.epoch),
                outcome.label,
                outcome.digest,
                closing.num_calls,
                outcome.bytes
            ),
            .update = messages::CollectedVersion{
                .epoch = outcome.epoch,
                .label = outcome.label,
                .digest = outcome.digest,
                .calls = closing.num_calls,
                .bytes = outcome.bytes}};
    }
    if (const Result<> done = closing.then.start(now); !done) answer_error(caller, done.error());
}

// A replica reports that it runs again, or has stopped. If it continued by itself, the trainer that
// paused it may be gone, and its calls so far may be half of a model.
void Admin::handle_standing(TimePoint now, messages::ReplicaStanding standing) {
    if (!standings_.has(standing.replica)) return;
    const ReplicaId replica = standing.replica;
    const bool was_held = standings_.is_any_held();
    updates_.set_has_weights(replica, standing.has_weights);
    const bool is_expired =
        standings_.record(std::move(standing)) == ReplicaStandings::News::kPauseExpired;
    // The trainer has been told, and continues with the previous version.
    if (loss_ && loss_->is_told && was_held && !is_expired && !standings_.is_any_held())
        loss_.reset();
    if (is_expired && !loss_ && !updates_.has_collection() && !standings_.is_any_held())
        lose_standstill(
            now, fmt::format("max_pause_s ended the pause of replica {}", raw(replica))
        );
    if (closing_ || !updates_.has_collection() || updates_.must_be_complete()) return;
    if (!is_expired && standings_.is_any_held()) return;
    Error why = make_error(
        ErrorCode::kAborted,
        "{} of replica {}",
        is_expired ? "max_pause_s ended the pause" : "generation went on during the call",
        raw(replica)
    );
    drive(now, [&](UpdateCoordinator::Out& out) {
        updates_.drop_collection(now, std::move(why), UpdateCoordinator::Telling::kDue, out);
    });
}

// ---- what was lost ----

void Admin::record_loss(TimePoint now, const UpdateCoordinator::LostCollection& lost) {
    const bool was_asked_for = lost.why.empty();
    const bool is_untold = loss_ && !loss_->is_told;
    // a caller that drops calls collected after a loss may not know of the loss
    if (was_asked_for && is_untold) return;
    Loss loss{.at = now, .refused_at = now, .is_told = was_asked_for, .told_peer = lost.told};
    if (closing_) loss.told_peer = closing_->then.caller.peer;
    if (is_untold && loss.told_peer != loss_->told_peer) loss.told_peer.clear();
    loss.calls = {.calls = lost.calls, .bytes = lost.bytes, .why = lost.why};
    loss.label = lost.label;
    if (was_asked_for) {
        loss.calls.why =
            closing_ ? "a complete update took their place" : "drop_stage dropped them";
    }
    loss.what = fmt::format(
        "{} calls without a session ({} bytes staged) take no effect", lost.calls, lost.bytes
    );
    loss_ = std::move(loss);
    remember_loss();
    spdlog::warn("{}", error_of(*loss_).message);
}

// Handles the refusal of a call that may be a part of a version: its trainer may ignore answers.
void Admin::lose_part(TimePoint now, const Error& why) {
    drive(now, [&](UpdateCoordinator::Out& out) { updates_.lose_part(now, why, out); });
    miss_part(now, why);
}

// Handles the refusal of a part when no call was collected yet: during the standstill, the
// trainer's other calls could become a version without this part.
void Admin::miss_part(TimePoint now, const Error& why) {
    const bool is_other = closing_ || updates_.is_ending() || updates_.must_be_complete();
    if (is_other || loss_ || !standings_.is_any_held()) return;
    loss_ = Loss{
        .calls = {.why = why.message},
        .what = "a call without a session was refused, and takes no effect",
        .at = now,
        .refused_at = now,
        .is_missed_part = true};
    spdlog::warn("{}", error_of(*loss_).message);
}

bool Admin::may_be_a_part(const messages::UpdateWeights& call) {
    return UpdateCoordinator::may_collect(call) && call.update.adapter.empty();
}

void Admin::remember_loss() {
    if (loss_->label.empty()) return;
    if (!lost_by_label_.contains(loss_->label) && lost_by_label_.size() >= kLostLabelsMax) {
        lost_by_label_.erase(std::ranges::min_element(lost_by_label_, {}, [](const auto& entry) {
            return entry.second.second.at;
        }));
    }
    lost_by_label_.insert_or_assign(loss_->label, std::pair{version().epoch, *loss_});
}

void Admin::recall_loss(TimePoint now, const std::string& label) {
    const auto found = lost_by_label_.find(label);
    if (found == lost_by_label_.end()) return;
    if (loss_ && now < loss_->refused_at + kLossQuiet) return;
    loss_ = found->second.second;
    loss_->refused_at = now;
}

// A call without a label may come from the trainer whose calls were lost.
void Admin::tell_loss(TimePoint now, const std::string& label) {
    loss_->refused_at = now;
    if (!label.empty() && label != loss_->label) return;
    loss_->is_part_refused = true;
    lost_by_label_.erase(loss_->label);
}

void Admin::forget_lost_labels() {
    std::erase_if(lost_by_label_, [&](const auto& entry) {
        const auto& [epoch, loss] = entry.second;
        return entry.first == version().label && epoch != version().epoch;
    });
}

// The previous tree's pause and released memory are gone, so later parts would become updates
// of their own.
void Admin::begin_after(TimePoint now, const Restart& restart) {
    if (restart.why.empty()) return;
    const Unfinished& before = restart.before;
    if (before.calls != Unfinished::Calls::kNone) lose_standstill(now, restart.why);
    if (before.calls == Unfinished::Calls::kCollected) {
        loss_->is_told = false;
        loss_->what = "calls without a session that were collected take no effect";
        spdlog::warn("{}", error_of(*loss_).message);
    }
    if (before.session != 0) {
        updates_.record_lost(
            {.session = before.session,
             .what = before.session_what,
             .how = "was dropped: " + restart.why}
        );
        spdlog::warn("{} was dropped: {}", before.session_what, restart.why);
    }
}

// No collected calls were lost. But a trainer may still send calls that should be collected, and
// each would become an update of its own.
void Admin::lose_standstill(TimePoint now, std::string why) {
    loss_ = Loss{
        .calls = {.why = std::move(why)},
        .what = "generation stands still no longer",
        .at = now,
        .refused_at = now,
        .is_told = true};
}

void Admin::expire_loss(TimePoint now) {
    const bool is_over = loss_ && loss_->is_told && !standings_.is_any_held() &&
                         !updates_.must_be_complete() && now >= loss_->refused_at + kLossQuiet;
    if (is_over) loss_.reset();
}

Error Admin::error_of(const Loss& loss) const {
    return make_error(
        ErrorCode::kAborted,
        "{}: {}. Epoch {} serves. {}, or make the call that goes on{}",
        loss.what,
        loss.calls.why,
        raw(version().epoch),
        standings_.is_any_held() ? "Send every tensor again before generation goes on"
                                 : "Pause and send every tensor again",
        loss.calls.calls == 0 && loss.is_told ? "" : " (a second time, if this is the first)"
    );
}

Result<> Admin::check_loss(TimePoint now, const std::string& peer) {
    if (!loss_ || updates_.must_be_complete()) return Ok{};
    const bool is_told = loss_->is_told || loss_->told_peer == peer;
    const bool is_collecting = updates_.has_collection();
    if (is_told && !is_collecting) {
        // More calls of the lost version may follow, so the loss ends only when
        // generation continues.
        if (!standings_.is_any_held()) loss_.reset();
        return Ok{};
    }
    Error error = error_of(*loss_);
    if (is_collecting) tell_loss(now, updates_.collection_label());
    loss_->is_told = true;
    if (is_collecting) {
        drive(now, [&](UpdateCoordinator::Out& out) {
            updates_.drop_collection(now, error, UpdateCoordinator::Telling::kDone, out);
        });
    }
    return error;
}

Result<> Admin::check_late_part(TimePoint now, const std::string& label) {
    if (!loss_ || now >= loss_->refused_at + kLossQuiet) return Ok{};
    Error error = error_of(*loss_);
    tell_loss(now, label);
    return error;
}

// A pause of a running tree is a new beginning: it ends a loss for which a caller was refused. Any
// other loss stays, because few clients read a pause's answer. Calls that are being collected now
// began under another pause.
std::string Admin::note_for_pause(TimePoint now) {
    if (const auto collecting = updates_.collecting(now)) {
        return fmt::format(
            "{} calls without a session are collected, the first {:.1f} s ago",
            collecting->calls,
            collecting->age_s
        );
    }
    if (!loss_) return "";
    std::string note = error_of(*loss_).message;
    if (!standings_.is_any_held() && (loss_->is_told || loss_->is_part_refused)) loss_.reset();
    return note;
}

Admin::Note Admin::take_note(const AdminCaller& caller) {
    auto note = notes_.extract({caller.peer, caller.call});
    return note.empty() ? Note{} : std::move(note.mapped());
}

}  // namespace pitstop::tokenizer
