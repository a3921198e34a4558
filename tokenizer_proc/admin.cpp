#include "tokenizer_proc/admin.h"

#include "base/log.h"
#include "messages/source_reach.h"
#include "tokenizer_proc/call_timeouts.h"
#include "tokenizer_proc/named_adapter.h"
#include "tokenizer_proc/timeout.h"

#include <algorithm>
#include <utility>

namespace pitstop::tokenizer {
namespace {

const messages::WeightSource& source_of(const messages::UpdateWeights& message) {
    return message.update.source;
}
const messages::WeightSource& source_of(const messages::StageWeights& message) {
    return message.update.source;
}
const messages::WeightSource& source_of(const messages::UpdateBucket& message) {
    return message.source;
}

Result<> check_comes_by_network(std::string_view type, const messages::WeightSource& source) {
    const std::string_view memory = messages::shared_memory_of(source);
    if (memory.empty()) return Ok{};
    return make_error(
        ErrorCode::kUnsupported,
        "{}: a source of {} uses shared memory, which callers at a tcp door do not have; accepted "
        "there are {}",
        type,
        memory,
        messages::kSourcesThatTravel
    );
}

}  // namespace

Admin::Admin(int num_replicas, TreeIdentity identity, std::vector<std::string> served)
    : identity_(std::move(identity)),
      served_(std::move(served)),
      fanout_(num_replicas, outbox_),
      updates_(num_replicas, identity_.first_update(), outbox_),
      collected_(num_replicas, updates_, fanout_, outbox_) {}

bool Admin::takes(std::string_view type) { return messages::AdminCalls::has(type); }

void Admin::set_version(
    const ReplicaHellos& hellos,
    const std::string& weights_path,
    const std::optional<messages::LostVersion>& lost
) {
    fanout_.set_tp(static_cast<int>(hellos.first().tp));
    updates_.set_version(hellos, weights_path, lost);
}

void Admin::bring_back(TimePoint now, ReturningAdapters::Args adapters) {
    updates_.bring_back(now, std::move(adapters));
    collected_.bring_back_next(now);
}

Admin::Out Admin::take_output() {
    Out out = std::exchange(out_, {});
    out.serves = updates_.take_serves();
    out.orders = outbox_.take_orders();
    out.answers = outbox_.take_answers();
    Unfinished unfinished = collected_.unfinished();
    if (unfinished == said_unfinished_) return out;
    said_unfinished_ = unfinished;
    out.unfinished = std::move(unfinished);
    return out;
}

// ---- calls ----

Result<> Admin::call(
    TimePoint now, const std::string& peer, const messages::Frames& frames, ClientPlace place
) {
    Result<> taken = Ok{};
    const bool is_known = messages::AdminCalls::for_type(frames.type, [&]<class Message>() {
        taken = receive_call<Message>(now, peer, frames, place);
    });
    CHECK(is_known);
    return taken;
}

template <class Message>
Result<> Admin::receive_call(
    TimePoint now, const std::string& peer, const messages::Frames& frames, ClientPlace place
) {
    Result<Message> read = identity_.read<Message>(frames);
    Result<> problem = read ? check_adapter_of(*read, served_) : Result<>(read.error());
    if constexpr (requires { source_of(*read); }) {
        if (problem && place == ClientPlace::kElsewhere)
            problem = check_comes_by_network(Message::kType, source_of(*read));
    }
    if constexpr (kBringsWeights<Message>) {
        const bool may_be_part = read ? may_be_a_part(*read) : may_be_an_unread_part(frames);
        if (!problem && may_be_part) collected_.lose_part(now, problem.error());
    }
    RETURN_IF_ERROR(problem);
    HeldCall call = held_call(now, peer, *std::move(read));
    call.bytes = frames.body.size();
    for (const std::string& raw : frames.raw) call.bytes += raw.size();
    if (collected_.must_wait(call)) return collected_.hold(std::move(call));
    return call.start(now);
}

// A call ends by its caller's timeout, which includes the wait for other calls (P5).
template <class Message>
HeldCall Admin::held_call(TimePoint now, const std::string& peer, Message message) {
    const AdminCaller caller{peer, message.call};
    const TimePoint deadline = now + timeout_or(timeout_of<Message>(), message.timeout_ms);
    constexpr auto kBeside = messages::CallOf<Message>::kBesideUpdate;
    return {
        .caller = caller,
        .what = Message::kType,
        .adapter = adapter_of(message),
        .deadline = deadline,
        .brings_weights = kBringsWeights<Message>,
        .is_unload = kBeside == messages::BesideUpdate::kWaits,
        .may_be_part = may_be_a_part(message),
        .start = [this, peer, now, deadline, message = std::move(message)](TimePoint at) mutable {
            if (at > now) {
                const auto left = std::chrono::floor<std::chrono::milliseconds>(deadline - at);
                message.timeout_ms = std::max<std::int64_t>(1, left.count());
            }
            return start(at, peer, std::move(message));
        }};
}

template <class Message>
Result<> Admin::start(TimePoint now, const std::string& peer, Message message) {
    if constexpr (kPublishes<Message>) {
        // A continue is refused for a loss even if a replica would refuse it anyway: when it
        // reaches the replica, the obstacle may be gone.
        constexpr bool kIsContinue = std::is_same_v<Message, messages::ContinueGeneration>;
        const bool is_closing = collected_.is_closing();
        const bool goes_on = !is_closing && collected_.lets_generation_go_on(message);
        if (goes_on || (kIsContinue && !is_closing))
            RETURN_IF_ERROR(collected_.check_loss(now, peer));
        if (kIsContinue && !goes_on && !is_closing)
            RETURN_IF_ERROR(collected_.check_none_is_collected(now));
        if (goes_on && collected_.is_to_publish())
            return collected_.publish(now, held_call(now, peer, std::move(message)));
    } else if constexpr (requires { message.update.epoch; }) {
        if (replaces_collection(message))
            return collected_.replace(now, held_call(now, peer, std::move(message)));
    }
    return handle(now, peer, std::move(message));
}

template <class Message>
bool Admin::replaces_collection(const Message& message) const {
    if constexpr (std::is_same_v<Message, messages::UpdateWeights>) {
        if (collected_.joins(message)) return false;
    }
    messages::UpdateSpec spec = message.update;
    if constexpr (std::is_same_v<Message, messages::BeginUpdate>) spec.partial = false;
    return collected_.is_replaced_by(spec);
}

template <class Message>
Result<> Admin::handle(TimePoint now, const std::string& peer, const Message& message) {
    if constexpr (messages::CallOf<Message>::kBesideUpdate != messages::BesideUpdate::kTaken) {
        if (updates().is_busy()) {
            messages::ReplyTo<Message> reply;
            constexpr bool kIsUnload = std::is_same_v<Message, messages::UnloadAdapter>;
            reply.verdict = make_error(
                ErrorCode::kFailedPrecondition,
                "{} now: {}",
                kIsUnload ? "an adapter cannot be unloaded" : "the label cannot change",
                updates().busy(now).message
            );
            if (kIsUnload)
                updates_.record_failure(
                    now, Message::kType, adapter_of(message), reply.verdict.error()
                );
            outbox_.answer({peer, message.call}, std::move(reply));
            return Ok{};
        }
    }
    if constexpr (messages::AsksReplicas<Message>) {
        return fanout_.pass_on(
            now, peer, message, message, fanout_.each<messages::PartOf<Message>>()
        );
    } else {
        const bool may_be_part = may_be_a_part(message);
        collected_.drive(now, [&](UpdateCoordinator& updates, UpdateOutput& out) {
            updates.handle(now, {peer, message.call, Message::kType, may_be_part}, message, out);
        });
        return Ok{};
    }
}

Result<> Admin::handle(
    TimePoint now, const std::string& peer, const messages::PauseGeneration& message
) {
    RETURN_IF_ERROR(handle<messages::PauseGeneration>(now, peer, message));
    if (std::string note = collected_.note_for_pause(now); !note.empty())
        outbox_.add_note({peer, message.call}, {.text = std::move(note)});
    return Ok{};
}

Result<> Admin::handle(
    TimePoint now, const std::string& peer, const messages::SetWeightLabel& message
) {
    if (!collected_.takes_label()) return handle<messages::SetWeightLabel>(now, peer, message);
    collected_.name(peer, message);
    return Ok{};
}

Result<> Admin::handle(TimePoint, const std::string& peer, const messages::Shutdown& message) {
    messages::ShutdownReply reply;
    reply.ok = true;
    reply.open_requests = facts_.open_requests;
    outbox_.answer({peer, message.call}, std::move(reply));
    out_.drain = duration_of(message.drain_s);
    return Ok{};
}

Result<> Admin::handle(
    TimePoint now, const std::string& peer, const messages::RefusedPart& message
) {
    collected_.drive(now, [&](UpdateCoordinator& updates, UpdateOutput& out) {
        updates.handle(now, {peer, message.call, messages::RefusedPart::kType}, message, out);
    });
    collected_.miss_part(now, {ErrorCode::kFailedPrecondition, message.why});
    return Ok{};
}

Result<> Admin::handle(
    TimePoint now, const std::string& peer, const messages::UpdateWeights& message
) {
    if (message.unnamed) {
        bool is_taken = false;
        collected_.drive(now, [&](UpdateCoordinator& updates, UpdateOutput& out) {
            const UpdateCoordinator::Caller caller{
                peer, message.call, messages::UpdateBucket::kType};
            is_taken = updates.take_unnamed(now, caller, message, out);
        });
        if (is_taken) return Ok{};
        // The call is an update of its own, and needs all that one needs.
        if (auto problem = messages::invalid(message.update))
            return Error{ErrorCode::kInvalidArgument, *std::move(problem)};
    }
    if (UpdateCoordinator::may_collect(message)) collected_.recall(now, message.update.label);
    if (collected_.joins(message)) {
        collected_.join(now, peer, message);
        return Ok{};
    }
    if (UpdateCoordinator::may_collect(message))
        RETURN_IF_ERROR(collected_.check_late_part(now, message.update.label));
    return handle<messages::UpdateWeights>(now, peer, message);
}

Result<> Admin::handle(
    TimePoint now, const std::string& peer, const messages::GetWeights& message
) {
    messages::WorkerReadTensor order;
    order.name = message.name;
    return fanout_.pass_on(
        now, peer, message, std::move(order), TensorRead(fanout_.tp()), ReplicaId{0}
    );
}

Result<> Admin::handle(
    TimePoint now, const std::string& peer, const messages::WeightDigests& message
) {
    return fanout_.pass_on(
        now, peer, message, messages::WorkerDigest{}, fanout_.each<messages::WorkerDigests>()
    );
}

Result<> Admin::handle(TimePoint now, const std::string& peer, const messages::InitGroup& message) {
    const int num_replicas = fanout_.num_replicas();
    const int tp = fanout_.tp();
    if (message.spec.rank_offset + std::int64_t{num_replicas} * tp > message.spec.world_size) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "init_group: world_size is {}; {} replicas of {} ranks from rank_offset {} need {}",
            message.spec.world_size,
            num_replicas,
            tp,
            message.spec.rank_offset,
            message.spec.rank_offset + std::int64_t{num_replicas} * tp
        );
    }
    messages::WorkerGroup order;
    order.action = messages::GroupAction::kInit;
    order.spec = message.spec;
    return fanout_.pass_on(
        now, peer, message, std::move(order), fanout_.each<messages::WorkerGrouped>()
    );
}

Result<> Admin::handle(
    TimePoint now, const std::string& peer, const messages::DestroyGroup& message
) {
    messages::WorkerGroup order;
    order.action = messages::GroupAction::kDestroy;
    order.spec.group = message.group;
    return fanout_.pass_on(
        now, peer, message, std::move(order), fanout_.each<messages::WorkerGrouped>()
    );
}

// ---- aborts: the door ends the requests and waits for their last chunks ----

Result<> Admin::handle(TimePoint now, const std::string& peer, messages::Abort message) {
    const TimePoint deadline = now + timeout_or(kControlTimeout, message.timeout_ms);
    out_.aborts.push_back({{peer, message.call}, deadline, std::move(message)});
    return Ok{};
}

void Admin::aborted(const AbortAsked& asked, Aborted what) {
    messages::AbortReply reply;
    reply.ok = true;
    reply.results = std::move(what.results);
    fanout_.wait_for_last_chunks(
        asked.caller, asked.deadline, {std::move(what.ending), std::move(reply)}
    );
}

bool Admin::may_be_a_part(const messages::UpdateWeights& call) const {
    return UpdateCoordinator::may_collect(call) ||
           (call.unnamed && updates().is_unnamed_session_of(call.update.adapter));
}

bool Admin::may_be_an_unread_part(const messages::Frames& frames) const {
    const std::string adapter = messages::peek_string(frames, "update", "adapter");
    return !identity_.is_other(frames) && (adapter.empty() || updates().is_of(adapter));
}

// ---- time ----

void Admin::tick(TimePoint now) {
    for (const OpenCalls::Late& late : fanout_.tick(now))
        updates_.record_failure(now, late.what, late.adapter, late.error);
    collected_.tick(now);
}

void Admin::fail_all(const Error& error) {
    updates_.give_up_bringing_back();
    fanout_.fail_all(error);
    collected_.fail_all(error);
}

}  // namespace pitstop::tokenizer
