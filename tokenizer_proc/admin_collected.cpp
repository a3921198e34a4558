// Calls without a session become one update here; others wait for it.
#include "tokenizer_proc/admin.h"

#include <utility>

namespace pitstop::tokenizer {

bool Admin::joins_collection(const messages::UpdateWeights& message) const {
    if (!UpdateCoordinator::may_collect(message)) return false;
    return updates_.is_collecting() || is_paused_ || is_released_ || updates_.must_be_complete();
}

Result<> Admin::hold(TimePoint now, HeldCall call) {
    if (held_.size() >= kCallsMax) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "{} calls wait for the collected update already",
            held_.size()
        );
    }
    const std::int64_t timeout_ms = call.timeout_ms;
    held_.push_back(std::move(call));
    if (!is_closing_) close_collection(now, timeout_ms);
    return Ok{};
}

// Ends the collection: its calls take effect as one, or are forgotten where others replace what
// they never completed. It has the time of the call that needs it, which is told then.
void Admin::close_collection(TimePoint now, std::int64_t timeout_ms) {
    is_closing_ = true;
    drive(now, [&](UpdateCoordinator::Out& out) {
        if (updates_.is_collecting_all()) {
            const messages::DropStage call{.timeout_ms = timeout_ms};
            updates_.handle(now, {.what = messages::DropStage::kType}, call, out);
        } else {
            const messages::CommitWeights call{.timeout_ms = timeout_ms};
            updates_.handle(now, {.what = messages::CommitWeights::kType}, call, out);
        }
    });
}

// Goes on with the calls that waited. The first is told what became of the update; if it failed,
// that is its answer, so that nobody goes on with weights other than those that were sent.
void Admin::release_held(TimePoint now) {
    is_closing_ = false;
    const std::optional<messages::UpdateReply> reply = std::exchange(collected_, std::nullopt);
    bool is_first = true;
    for (const HeldCall& call : std::exchange(held_, {})) {
        if (std::exchange(is_first, false) && reply && !call.replaces_all) {
            if (!reply->ok) {
                answer_error(
                    call.caller,
                    Error{
                        reply->verdict.error().code,
                        fmt::format("the collected update failed: {}", reply->verdict.message)}
                );
                continue;
            }
            notes_[{call.caller.peer, call.caller.call}] = fmt::format(
                "the collected update took effect: epoch {}, label '{}', digest {}, {} bytes",
                raw(reply->epoch),
                reply->label,
                reply->digest,
                reply->bytes
            );
        }
        if (const Result<> done = call.handle(now); !done) answer_error(call.caller, done.error());
    }
}

// The time of these calls is up before the update is over. The first is told by then why that is.
void Admin::expire_held(TimePoint now) {
    std::erase_if(held_, [&](const HeldCall& call) {
        if (now < call.deadline + kHeldGrace) return false;
        answer_error(
            call.caller,
            make_error(
                ErrorCode::kDeadlineExceeded,
                "{} waited for the collected update, which is not in effect yet (its state: {})",
                call.what,
                name_of(updates_.state())
            )
        );
        return true;
    });
}

// Ends a pause that had an end of its own: what was collected is for what is generated after it.
void Admin::end_pause_that_is_over(TimePoint now) {
    if (!paused_until_ || now < *paused_until_) return;
    paused_until_.reset();
    is_paused_ = false;
    if (!is_closing_ && updates_.is_collecting() && !updates_.is_collecting_all())
        close_collection(now, /*timeout_ms=*/0);
}

std::string Admin::take_note(const AdminCaller& caller) {
    auto note = notes_.extract({caller.peer, caller.call});
    return note.empty() ? std::string() : std::move(note.mapped());
}

}  // namespace pitstop::tokenizer
