#include "tokenizer_proc/update_driver.h"

#include "base/check.h"
#include "messages/source_reach.h"

#include <fmt/format.h>

#include <utility>

namespace pitstop::tokenizer {

messages::UpdateState UpdateDriver::state() const {
    if (update_ && update_->is_collecting()) return messages::UpdateState::kCollecting;
    if (weights_.is_torn()) return messages::UpdateState::kTorn;
    const messages::UpdateState state = messages::state_of(phase());
    if (state != messages::UpdateState::kServing || weights_.has_weights()) return state;
    return messages::UpdateState::kAwaitingWeights;
}

// ---- orders ----

void UpdateDriver::begin(TimePoint now, Begin begin, Out& out) {
    const messages::UpdateId id = std::exchange(
        next_id_, static_cast<messages::UpdateId>(static_cast<std::uint64_t>(next_id_) + 1)
    );
    Epoch new_epoch = begin.spec.epoch.value_or(next(weights_.version().epoch));
    if (!begin.spec.adapter.empty())
        new_epoch = Epoch{static_cast<std::int64_t>(static_cast<std::uint64_t>(id))};
    TreeUpdate& update = update_.emplace(
        now,
        static_cast<std::size_t>(num_replicas_),
        TreeUpdate::Start{
            .id = id,
            .spec = std::move(begin.spec),
            .new_epoch = new_epoch,
            .goal = begin.goal,
            .is_rollback = begin.is_rollback}
    );
    update.wait_for(now, std::move(begin.caller), begin.timeout_ms);
    // A stage of the model's weights overwrites the retained copy. An adapter's stage does not.
    if (!update.is_rollback() && !update.is_of_adapter()) weights_.lose_retained();
    out.orders.push_back(update.begin(now));
}

void UpdateDriver::begin_session(
    TimePoint now, UpdateCaller caller, const messages::BeginUpdate& call, Out& out
) {
    messages::UpdateSpec spec = call.update;
    caller.adapter = spec.adapter;
    // If no version serves that a part could change, all tensors must arrive before the commit.
    if (spec.adapter.empty() && weights_.must_be_complete()) spec.partial = false;
    if (auto error = weights_.problem_of(spec)) return refuse(std::move(caller), *error, out);
    if (update_ && call.take_over && update_->is_idle()) {
        update_->wait_for(now, std::move(caller), call.timeout_ms);
        update_->set_successor(call);
        const std::string who = call.holder.empty() ? "another trainer" : call.holder;
        return drop(now, {ErrorCode::kAborted, who + " took over"}, out);
    }
    if (update_) return refuse(std::move(caller), update_->busy(now), out);
    begin(
        now,
        {std::move(caller), call.timeout_ms, std::move(spec), messages::UpdatePhase::kOpen},
        out
    );
    update_->open_session(call);
}

void UpdateDriver::drop(TimePoint now, Error why, Out& out) {
    if (auto loss = update_->loss(why.message)) out.lost = *std::move(loss);
    out.orders.push_back(update_->drop(now, std::move(why)));
}

// ---- answers ----

void UpdateDriver::record_awaited(messages::UpdateWaits waits) {
    if (!update_ || waits.update != update_->id() || !update_->record_awaited(std::move(waits)))
        ++num_late_parts_;
}

void UpdateDriver::handle_part(TimePoint now, const messages::UpdatePart& part, Out& out) {
    if (!update_ || part.update != update_->id() || !update_->answers().awaits(part)) {
        ++num_late_parts_;
        return;
    }
    switch (update_->record(part)) {
        case messages::UpdateRound::Progress::kGoesOn:
            return;
        case messages::UpdateRound::Progress::kDone:
            return all_answered(now, out);
        case messages::UpdateRound::Progress::kFailed:
            break;
    }
    if (update_->is_committing() && !update_->is_of_adapter()) weights_.fail_commit();
    drop(
        now,
        make_error(ErrorCode::kInternal, "replica {}: {}", raw(part.replica), part.verdict.message),
        out
    );
}

// Called when every replica has completed the latest order.
void UpdateDriver::all_answered(TimePoint now, Out& out) {
    TreeUpdate& update = *update_;
    if (update.answers().order() == messages::UpdateOrder::kStage) {
        if (auto problem = update.answers().problem_of_stages())
            return drop(now, *std::move(problem), out);
        update.record_prepared(now);
    }
    switch (phase()) {
        case messages::UpdatePhase::kOpen:
            if (auto source = update.take_first_source())
                return out.orders.push_back(update.fill(now, *std::move(source)));
            // With the last missing tensor, an engine without weights becomes complete.
            if (update.is_collection() && !update.spec().partial &&
                update.answers().num_missing() == 0)
                return out.orders.push_back(
                    update.finish(now, update.spec().label, update.spec().digest)
                );
            if (update.calls().is_unnamed() && !update.has_been_open())
                ended_.forget_told_loss(update.spec().adapter);
            reply(now, std::nullopt, out);
            return update.record_idle(now);
        case messages::UpdatePhase::kPrepared:
            if (update.is_to_commit()) return out.orders.push_back(update.ready(now));
            reply(now, std::nullopt, out);
            return update.record_idle(now);
        case messages::UpdatePhase::kStopped:
            return out.orders.push_back(update.stage(now));
        case messages::UpdatePhase::kReady:  // only votes of all replicas lead to a commit (P2)
            if (!update.is_of_adapter()) decide();
            return out.orders.push_back(update.commit(now));
        case messages::UpdatePhase::kCommitted:
            return finish_commit(now, out);
        case messages::UpdatePhase::kDropped:
            return finish_drop(now, out);
        default:
            CHECK(false);
    }
}

// Once a commit is ordered, the previous version cannot be restored.
void UpdateDriver::decide() {
    const TreeUpdate& update = *update_;
    if (update.is_rollback())
        return weights_.decide_rollback(update.new_epoch(), update.label(), update.digest());
    weights_.decide(
        {.epoch = update.new_epoch(),
         .label = update.label(),
         .digest = update.digest(),
         .path = update.spec().partial ? "" : messages::directory_of(update.spec().source)}
    );
}

void UpdateDriver::finish_commit(TimePoint now, Out& out) {
    TreeUpdate& update = *update_;
    std::string how = fmt::format(
        "was committed as version {} of '{}'", raw(update.new_epoch()), update.spec().adapter
    );
    if (!update.is_of_adapter()) {
        // A direct update keeps no copy of the previous version; a rollback keeps the version that
        // it replaced.
        const bool is_retained = update.spec().mode == messages::UpdateMode::kStaged;
        weights_.commit(
            is_retained ? ServingWeights::Previous::kRetained
                        : ServingWeights::Previous::kOverwritten,
            update.may_be_mixed() && update.spec().partial ? update.calls().called_label()
                                                           : std::string()
        );
        out.has_made_whole = update.is_collection() && !update.spec().partial;
        how = fmt::format("was committed as epoch {}", raw(weights_.version().epoch));
    }
    reply(now, std::nullopt, out);
    end_session(how, Loss::kNone);
    update_.reset();
}

void UpdateDriver::finish_drop(TimePoint now, Out& out) {
    TreeUpdate& update = *update_;
    if (update.answers().is_any_torn()) weights_.tear();
    const Error& failure = update.failure();
    const bool was_asked_for = failure.code == ErrorCode::kAborted && failure.message.empty();
    const std::string how =
        "was dropped: " + (was_asked_for ? "a call asked for it" : failure.message);
    if (!update.caller()) out.notes.push_back(fmt::format("{} {}", update.describe(), how));
    // The caller that ends a session learns the outcome, and the session gets no further call.
    end_session(how, update.is_to_commit() ? Loss::kNone : Loss::kOfUnnamedCalls);
    if (auto successor = update.take_successor(now)) {
        update_.reset();
        begin_session(now, successor->caller, successor->call, out);
        // The session may be refused, because the weights may have been torn meanwhile.
        if (update_) update_->take_over(*std::move(successor));
        return;
    }
    reply(now, was_asked_for ? std::nullopt : std::optional<Error>(failure), out);
    update_.reset();
}

// Records how the session ended, for callers that try to continue it.
void UpdateDriver::end_session(const std::string& how, Loss loss) {
    const TreeUpdate& update = *update_;
    // no caller was told that the session is open
    if (!update.is_session() || !update.has_been_open()) return;
    ended_.record(
        {.session = update.number(),
         .what = update.describe(),
         .how = how,
         .adapter = update.spec().adapter}
    );
    if (loss == Loss::kOfUnnamedCalls && update.calls().is_unnamed() &&
        !update.calls().are_all_named())
        ended_.record_loss();
}

// ---- time ----

void UpdateDriver::tick(TimePoint now, Out& out) {
    ended_.expire_losses(now);
    if (!update_ || now < update_->deadline()) return;
    const auto late = [&] {
        return fmt::format(
            "phase {}: no answer from {}",
            update_->phase_name(),
            update_->answers().who_is_missing()
        );
    };
    switch (phase()) {
        case messages::UpdatePhase::kOpen:
            return drop(
                now,
                make_error(
                    ErrorCode::kDeadlineExceeded,
                    "the session timed out after {:.1f} s without a call",
                    seconds(update_->idle_timeout())
                ),
                out
            );
        case messages::UpdatePhase::kPrepared:
            return drop(
                now,
                {ErrorCode::kDeadlineExceeded,
                 "the staged update was neither committed nor dropped in time"},
                out
            );
        case messages::UpdatePhase::kCommitting:
        case messages::UpdatePhase::kDropping: {
            // The caller stops waiting. The order completes when the replica answers, and no other
            // update begins before that.
            std::string message = late();
            if (!update_->failure().message.empty())
                message += "; dropping because: " + update_->failure().message;
            reply(now, Error{ErrorCode::kDeadlineExceeded, std::move(message)}, out);
            return update_->wait_without_deadline();
        }
        default:
            return drop(now, {ErrorCode::kDeadlineExceeded, late()}, out);
    }
}

std::optional<TimePoint> UpdateDriver::next_deadline() const {
    if (!update_ || update_->deadline() == TimePoint::max()) return std::nullopt;
    return update_->deadline();
}

void UpdateDriver::fail(const std::string& message, Out& out) {
    if (!update_ || !update_->caller()) return;
    Error error{
        ErrorCode::kUnavailable, fmt::format("phase {}: {}", update_->phase_name(), message)};
    reply(update_->called_at(), error, out);
}

// ---- callers ----

messages::UpdateReply UpdateDriver::reply_now(const UpdateCaller& caller) const {
    messages::UpdateReply reply;
    reply.call = caller.call;
    reply.state = state();
    reply.epoch = weights_.version().epoch;
    reply.label = weights_.version().label;
    reply.digest = weights_.version().digest;
    return reply;
}

void UpdateDriver::refuse(UpdateCaller caller, Error error, Out& out) const {
    messages::UpdateReply reply = reply_now(caller);
    if (caller.may_be_part) out.part_refused = error;
    reply.adapter = caller.adapter;
    reply.verdict = std::move(error);
    out.replies.emplace_back(std::move(caller), std::move(reply));
}

// Answers the caller of the current update, if a caller still waits.
void UpdateDriver::reply(TimePoint now, const std::optional<Error>& error, Out& out) {
    if (!update_->caller()) return;
    messages::UpdateReply reply = update_->reply(now, error, state(), weights_.version());
    out.replies.emplace_back(update_->take_caller(), std::move(reply));
}

}  // namespace pitstop::tokenizer
