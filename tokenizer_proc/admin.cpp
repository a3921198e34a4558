#include "tokenizer_proc/admin.h"

#include "base/log.h"
#include "messages/source_reach.h"
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

// Returns the deadline of a call without a timeout of its own.
template <class Message>
constexpr Duration timeout_of() {
    if constexpr (std::is_same_v<Message, messages::Status>) return Admin::kStatusTimeout;
    if constexpr (std::is_same_v<Message, messages::GetWeights> || std::is_same_v<Message, messages::WeightDigests>)
        return Admin::kReadTimeout;
    if constexpr (std::is_same_v<Message, messages::InitGroup> || std::is_same_v<Message, messages::DestroyGroup>)
        return Admin::kGroupTimeout;
    return Admin::kControlTimeout;
}

// Returns in a word what a call waits for: its reply's type without "_reply".
template <class Message>
constexpr std::string_view phase_of() {
    const std::string_view type = messages::ReplyTo<Message>::kType;
    return type.substr(0, type.rfind('_'));
}

Unfinished unfinished_work(
    const UpdateCoordinator& updates, const LostCalls& lost, const ReplicaStandings& standings
) {
    using Calls = Unfinished::Calls;
    Unfinished unfinished;
    if (updates.has_undecided_collection() || lost.is_untold()) {
        unfinished.calls = Calls::kCollected;
    } else if (standings.is_any_held() || lost.is_any()) {
        unfinished.calls = Calls::kStandStill;
    }
    if (auto session = updates.unnamed_at_stake()) {
        unfinished.session = session->session;
        unfinished.session_what = std::move(session->what);
    }
    return unfinished;
}

}  // namespace

Admin::Admin(int num_replicas, TreeIdentity identity)
    : num_replicas_(num_replicas),
      identity_(std::move(identity)),
      updates_(num_replicas, identity_.first_update()),
      standings_(num_replicas) {}

bool Admin::takes(std::string_view type) { return messages::AdminCalls::has(type); }

void Admin::set_version(
    const messages::SchedulerHello& hello,
    const std::string& weights_path,
    const std::optional<messages::LostVersion>& lost
) {
    tp_ = static_cast<int>(hello.tp);
    has_had_weights_ = hello.has_weights;
    updates_.set_version(
        {.epoch = hello.epoch,
         .label = hello.label,
         .digest = hello.digest,
         .path = hello.has_weights ? weights_path : std::string()}
    );
    lost_ = lost;
    if (lost_) lost_->epoch = hello.epoch;
    say_version();
    for (int i = 0; i < num_replicas_; ++i)
        updates_.set_has_weights(ReplicaId{i}, hello.has_weights);
}

void Admin::keep_in(TimePoint now, const std::string& directory) {
    keep_.emplace(now, directory, tp_, updates_.version());
}

void Admin::bring_back(TimePoint now, ReturningAdapters::Args adapters) {
    returning_.begin(now, std::move(adapters));
    bring_back_next(now);
}

void Admin::bring_back_next(TimePoint now) {
    const UpdateCoordinator::Caller caller{.what = ReturningAdapters::kWhat};
    const auto is_busy = [&] { return updates_.is_busy(); };
    returning_.go_on(now, is_busy, [&](const messages::UpdateWeights& load) {
        drive(now, [&](UpdateCoordinator::Out& out) { updates_.handle(now, caller, load, out); });
    });
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
    Result<> problem = read ? Result<>(Ok{}) : Result<>(read.error());
    if constexpr (requires { source_of(*read); }) {
        if (read && place == ClientPlace::kElsewhere)
            problem = check_comes_by_network(Message::kType, source_of(*read));
    }
    if constexpr (kBringsWeights<Message>) {
        const bool may_be_part = read ? may_be_a_part(*read) : !identity_.is_other(frames);
        if (!problem && may_be_part) lose_part(now, problem.error());
    }
    RETURN_IF_ERROR(problem);
    HeldCall call = held_call(now, peer, *std::move(read));
    call.bytes = frames.body.size();
    for (const std::string& raw : frames.raw) call.bytes += raw.size();
    if (must_wait(call)) return held_.add(std::move(call));
    return call.start(now);
}

// A call has no more time than its caller gave, including the wait for other calls (P5).
template <class Message>
HeldCall Admin::held_call(TimePoint now, const std::string& peer, Message message) {
    const AdminCaller caller{peer, message.call};
    const TimePoint deadline = now + timeout_or(timeout_of<Message>(), message.timeout_ms);
    return {
        .caller = caller,
        .what = Message::kType,
        .deadline = deadline,
        .brings_weights = kBringsWeights<Message>,
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
        // A continue is refused for a loss even if a replica would refuse it anyway: by the time it
        // reaches the replica, the obstacle may be gone.
        constexpr bool kIsContinue = std::is_same_v<Message, messages::ContinueGeneration>;
        const bool goes_on = !closing_ && lets_generation_go_on(message);
        if (goes_on || (kIsContinue && !closing_)) RETURN_IF_ERROR(check_loss(now, peer));
        if (kIsContinue && !goes_on && !closing_) RETURN_IF_ERROR(check_none_is_collected(now));
        if (goes_on) {
            if (updates_.is_collecting() && !updates_.is_collecting_all()) {
                return close_collection(
                    now, Closing::kCommit, held_call(now, peer, std::move(message))
                );
            }
        }
    } else if constexpr (requires { message.update.epoch; }) {
        if (replaces_collection(message)) {
            return close_collection(now, Closing::kDrop, held_call(now, peer, std::move(message)));
        }
    }
    return handle(now, peer, std::move(message));
}

// In a tree without weights, a complete update of the model replaces a collection that is not
// complete yet, unless the update would be refused.
template <class Message>
bool Admin::replaces_collection(const Message& message) const {
    if constexpr (std::is_same_v<Message, messages::UpdateWeights>) {
        if (joins_collection(message)) return false;
    }
    messages::UpdateSpec spec = message.update;
    if constexpr (std::is_same_v<Message, messages::BeginUpdate>) spec.partial = false;
    return !closing_ && spec.adapter.empty() && updates_.is_collecting() &&
           updates_.must_be_complete() && !updates_.problem_of(spec);
}

template <class Message, class Passed>
Result<> Admin::pass_on(
    TimePoint now,
    const std::string& peer,
    const Message& message,
    Passed order,
    OpenCalls::Awaited&& awaited,
    std::optional<ReplicaId> to
) {
    const Duration timeout = timeout_or(timeout_of<Message>(), message.timeout_ms);
    ASSIGN_OR_RETURN(
        order.call,
        calls_.open(
            {.caller = {peer, message.call},
             .what = Message::kType,
             .phase = phase_of<Message>(),
             .deadline = now + timeout + kReplicaGrace,
             .awaited = std::move(awaited)}
        )
    );
    if constexpr (requires { order.timeout_ms; })
        order.timeout_ms = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
    give_order(order, to);
    return Ok{};
}

template <class Message>
Result<> Admin::handle(TimePoint now, const std::string& peer, const Message& message) {
    if constexpr (messages::CallOf<Message>::kBesideUpdate == messages::BesideUpdate::kRefused) {
        if (updates_.is_busy()) {
            messages::ReplyTo<Message> reply;
            reply.verdict = make_error(
                ErrorCode::kFailedPrecondition,
                "the label cannot change now: {}",
                updates_.busy(now).message
            );
            answer({peer, message.call}, std::move(reply));
            return Ok{};
        }
    }
    if constexpr (messages::AsksReplicas<Message>) {
        Gathered<messages::PartOf<Message>> parts(num_replicas_, tp_);
        return pass_on(now, peer, message, message, std::move(parts));
    } else {
        const bool may_be_part = may_be_a_part(message);
        drive(now, [&](UpdateCoordinator::Out& out) {
            updates_.handle(now, {peer, message.call, Message::kType, may_be_part}, message, out);
        });
        return Ok{};
    }
}

Result<> Admin::handle(
    TimePoint now, const std::string& peer, const messages::PauseGeneration& message
) {
    RETURN_IF_ERROR(handle<messages::PauseGeneration>(now, peer, message));
    if (std::string note = note_for_pause(now); !note.empty())
        notes_.add({peer, message.call}, {.text = std::move(note)});
    return Ok{};
}

Result<> Admin::handle(
    TimePoint now, const std::string& peer, const messages::SetWeightLabel& message
) {
    if (!updates_.is_collecting() || closing_)
        return handle<messages::SetWeightLabel>(now, peer, message);
    name_collection(peer, message);
    return Ok{};
}

Result<> Admin::handle(TimePoint, const std::string& peer, const messages::Shutdown& message) {
    messages::ShutdownReply reply;
    reply.ok = true;
    reply.open_requests = facts_.open_requests;
    answer({peer, message.call}, std::move(reply));
    out_.drain = duration_of(message.drain_s);
    return Ok{};
}

Result<> Admin::handle(
    TimePoint now, const std::string& peer, const messages::RefusedPart& message
) {
    drive(now, [&](UpdateCoordinator::Out& out) {
        updates_.handle(now, {peer, message.call, messages::RefusedPart::kType}, message, out);
    });
    miss_part(now, {ErrorCode::kFailedPrecondition, message.why});
    return Ok{};
}

Result<> Admin::handle(
    TimePoint now, const std::string& peer, const messages::UpdateWeights& message
) {
    if (message.unnamed) {
        bool is_taken = false;
        drive(now, [&](UpdateCoordinator::Out& out) {
            const UpdateCoordinator::Caller caller{
                peer, message.call, messages::UpdateBucket::kType};
            is_taken = updates_.take_unnamed(now, caller, message, out);
        });
        if (is_taken) return Ok{};
    }
    if (UpdateCoordinator::may_collect(message)) lost_calls_.recall(now, message.update.label);
    if (joins_collection(message)) return join_collection(now, peer, message);
    if (UpdateCoordinator::may_collect(message))
        RETURN_IF_ERROR(lost_calls_.check_late_part(now, message.update.label));
    return handle<messages::UpdateWeights>(now, peer, message);
}

Result<> Admin::handle(
    TimePoint now, const std::string& peer, const messages::GetWeights& message
) {
    messages::WorkerReadTensor order;
    order.name = message.name;
    return pass_on(now, peer, message, std::move(order), TensorRead(tp_), ReplicaId{0});
}

Result<> Admin::handle(
    TimePoint now, const std::string& peer, const messages::WeightDigests& message
) {
    Gathered<messages::WorkerDigests> parts(num_replicas_, tp_);
    return pass_on(now, peer, message, messages::WorkerDigest{}, std::move(parts));
}

Result<> Admin::handle(TimePoint now, const std::string& peer, const messages::InitGroup& message) {
    if (message.spec.rank_offset + std::int64_t{num_replicas_} * tp_ > message.spec.world_size) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "init_group: world_size is {}; {} replicas of {} ranks from rank_offset {} need {}",
            message.spec.world_size,
            num_replicas_,
            tp_,
            message.spec.rank_offset,
            message.spec.rank_offset + std::int64_t{num_replicas_} * tp_
        );
    }
    messages::WorkerGroup order;
    order.action = messages::GroupAction::kInit;
    order.spec = message.spec;
    Gathered<messages::WorkerGrouped> parts(num_replicas_, tp_);
    return pass_on(now, peer, message, std::move(order), std::move(parts));
}

Result<> Admin::handle(
    TimePoint now, const std::string& peer, const messages::DestroyGroup& message
) {
    messages::WorkerGroup order;
    order.action = messages::GroupAction::kDestroy;
    order.spec.group = message.group;
    Gathered<messages::WorkerGrouped> parts(num_replicas_, tp_);
    return pass_on(now, peer, message, std::move(order), std::move(parts));
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
    if (what.ending.empty()) return answer(asked.caller, std::move(reply));
    const Result<CallId> opened = calls_.open(
        {.caller = asked.caller,
         .what = messages::Abort::kType,
         .phase = phase_of<messages::Abort>(),
         .deadline = asked.deadline + kReplicaGrace,
         .awaited = LastChunks{std::move(what.ending), std::move(reply)}}
    );
    if (!opened) answer_error(asked.caller, opened.error());
}

void Admin::request_ended(OpenId request) {
    calls_.for_each<LastChunks>([&](CallId id, LastChunks& abort) {
        if (abort.ending.erase(request) == 0 || !abort.ending.empty()) return;
        messages::AbortReply reply = std::move(abort.reply);
        answer(calls_.close(id), std::move(reply));
    });
}

// ---- answers ----

void Admin::answer_error(const AdminCaller& caller, const Error& error) {
    messages::ErrorReply reply;
    reply.error = error;
    answer(caller, std::move(reply));
}

void Admin::carry_out(TimePoint now, UpdateCoordinator::Out&& out) {
    // before a commit is ordered, so that no token names a version that is not on record
    say_version();
    for (const ReplicaOrder& each : out.orders)
        std::visit([&](const auto& message) { give_order(message); }, each);
    if (updates_.has_weights()) {
        has_had_weights_ = true;
        lost_.reset();
    }
    if (out.lost) {
        const auto closing = closing_ ? std::optional(closing_->then.caller.peer) : std::nullopt;
        lost_calls_.record(now, *out.lost, closing);
    }
    if (out.has_made_whole) lost_calls_.end();
    lost_calls_.forget_labels_of_version();
    if (keep_ && !updates_.is_torn() && updates_.version().epoch != keep_->version().epoch)
        give_order(keep_->committed(now, updates_.version()), ReplicaId{0});
    for (const std::string& note : out.notes) spdlog::warn("{}", note);
    for (auto& [caller, reply] : out.replies) {
        history_.record(now, caller.what, reply);
        if (caller.what == messages::BeginUpdate::kType && reply.ok) lost_calls_.end_missed_part();
        if (caller.what == ReturningAdapters::kWhat) {
            returning_.record(reply);
        } else if (caller.peer.empty()) {  // our own commit or drop: see close_collection()
            if (closing_) closing_->outcome = std::move(reply);
        } else {
            answer(AdminCaller{caller.peer, caller.call}, std::move(reply));
        }
    }
    // A late commit stays ordered, and may take forever; the caller does not wait for it.
    if (closing_ && (closing_->outcome || !updates_.is_busy())) finish_closing(now);
    if (out.part_refused) lose_part(now, *out.part_refused);
    start_held(now);
    bring_back_next(now);
}

void Admin::say_version() {
    if (updates_.decided() == said_) return;
    said_ = updates_.decided();
    out_.serves.push_back(said_);
}

void Admin::say_unfinished() {
    Unfinished unfinished = unfinished_work(updates_, lost_calls_, standings_);
    if (unfinished == said_unfinished_) return;
    said_unfinished_ = unfinished;
    out_.unfinished = std::move(unfinished);
}

void Admin::tick(TimePoint now) {
    lost_calls_.expire(now);
    for (const OpenCalls::Late& late : calls_.take_late(now)) answer_error(late.caller, late.error);
    drive(now, [&](UpdateCoordinator::Out& out) { updates_.tick(now, out); });
    expire_held(now);
    start_held(now);
}

TimePoint Admin::next_deadline() const {
    TimePoint first = updates_.next_deadline().value_or(TimePoint::max());
    first = std::min(first, held_.next_deadline());
    if (closing_ && !closing_->then.caller.peer.empty())
        first = std::min(first, closing_->then.deadline + HeldCall::kGrace);
    return std::min(first, calls_.next_deadline());
}

void Admin::fail_all(const Error& error) {
    returning_.give_up();
    for (const AdminCaller& caller : calls_.take_all()) answer_error(caller, error);
    is_starting_held_ = true;  // no further call starts
    drive(TimePoint{}, [&](UpdateCoordinator::Out& out) {
        updates_.fail(error.message, out);
        out.orders.clear();  // no process is left to run them
    });
    if (closing_) answer_error(closing_->then.caller, error);
    closing_.reset();
    for (const HeldCall& call : held_.take_all()) answer_error(call.caller, error);
}

}  // namespace pitstop::tokenizer
