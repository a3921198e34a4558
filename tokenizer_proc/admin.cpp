#include "tokenizer_proc/admin.h"

#include "base/log.h"
#include "tokenizer_proc/timeout.h"

#include <algorithm>
#include <set>
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

// Handles to memory mean nothing on another machine, or something else.
Result<> check_comes_by_network(std::string_view type, const messages::WeightSource& source) {
    const bool is_handles = source.kind == messages::SourceKind::kTensors &&
                            (source.format == messages::TensorFormat::kPickle ||
                             source.format == messages::TensorFormat::kVllmIpc);
    if (source.kind != messages::SourceKind::kIpc && !is_handles) return Ok{};
    return make_error(
        ErrorCode::kUnsupported,
        "{}: a source of {} hands tensors over in shared memory, and a tcp door is for other "
        "machines; accepted there are disk, distributed, and tensors in the call itself (each, "
        "flattened, sparse)",
        type,
        is_handles ? name_of(source.format) : name_of(source.kind)
    );
}

// "replica 0, replica 2"
std::string replicas_of(const std::map<OpenId, ReplicaId>& requests) {
    std::set<std::int32_t> replicas;
    for (const auto& [id, replica] : requests) replicas.insert(raw(replica));
    std::string names;
    for (const std::int32_t replica : replicas)
        names += fmt::format("{}replica {}", names.empty() ? "" : ", ", replica);
    return names;
}

// So that no sum overflows: a week at most.
Duration bounded_seconds(double seconds) {
    constexpr double kMost = 7 * 24 * 3600;
    return std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(std::min(seconds, kMost))
    );
}

Error too_many(std::string_view type) {
    return make_error(
        ErrorCode::kResourceExhausted,
        "{} {} calls are open, the most there may be",
        kCallsMax,
        type
    );
}

}  // namespace

Admin::Admin(int num_replicas, TreeIdentity identity, Ports ports)
    : num_replicas_(num_replicas),
      identity_(std::move(identity)),
      ports_(std::move(ports)),
      statuses_(num_replicas, messages::Status::kType, "status"),
      pauses_(num_replicas, messages::PauseGeneration::kType, "pause"),
      continues_(num_replicas, messages::ContinueGeneration::kType, "continue"),
      flushes_(num_replicas, messages::FlushCache::kType, "flush"),
      labels_(num_replicas, messages::SetWeightLabel::kType, "relabel"),
      memories_(num_replicas, "release_memory or resume_memory", "order"),
      updates_(num_replicas, identity_.first_update()) {}

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

// ---- calls ----

template <class Message>
Result<> Admin::take(
    TimePoint now, const std::string& peer, const messages::Frames& frames, ClientPlace place
) {
    ASSIGN_OR_RETURN(Message message, identity_.read<Message>(frames));
    if constexpr (requires { source_of(message); }) {
        if (place == ClientPlace::kElsewhere)
            RETURN_IF_ERROR(check_comes_by_network(Message::kType, source_of(message)));
    }
    if (must_wait_for_collected(message)) return hold(now, peer, std::move(message));
    return obey(now, peer, std::move(message));
}

Result<> Admin::call(
    TimePoint now, const std::string& peer, const messages::Frames& frames, ClientPlace place
) {
    Result<> taken = Ok{};
    const bool is_known = messages::AdminCalls::for_type(frames.type, [&]<class Message>() {
        taken = take<Message>(now, peer, frames, place);
    });
    CHECK(is_known);
    return taken;
}

template <class Message, class Part>
Result<> Admin::fan_out(
    TimePoint now, const std::string& peer, Message message, FanOut<Part>& calls, Duration most
) {
    if (calls.is_full()) return too_many(Message::kType);
    const Duration timeout = timeout_or(most, message.timeout_ms);
    const CallId id = std::exchange(next_call_, next(next_call_));
    calls.begin(id, {peer, message.call}, now + timeout + kReplicaGrace);
    message.call = id;
    message.timeout_ms = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
    ports_.to_all_replicas(encode(message));
    return Ok{};
}

Result<> Admin::obey(TimePoint now, const std::string& peer, messages::Status message) {
    return fan_out(now, peer, std::move(message), statuses_, kStatusTimeout);
}
Result<> Admin::obey(TimePoint now, const std::string& peer, messages::PauseGeneration message) {
    is_paused_ = true;
    paused_until_.reset();
    if (message.max_pause_s > 0) paused_until_ = now + bounded_seconds(message.max_pause_s);
    return fan_out(now, peer, std::move(message), pauses_, kControlTimeout);
}
Result<> Admin::obey(TimePoint now, const std::string& peer, messages::ContinueGeneration message) {
    return fan_out(now, peer, std::move(message), continues_, kControlTimeout);
}
Result<> Admin::obey(TimePoint now, const std::string& peer, messages::FlushCache message) {
    return fan_out(now, peer, std::move(message), flushes_, kControlTimeout);
}

Result<> Admin::obey(TimePoint now, const std::string& peer, messages::SetWeightLabel message) {
    // Here, and not by each replica for itself: those that have ended it would take the label.
    if (updates_.is_busy()) {
        messages::LabelReply reply;
        reply.verdict = make_error(
            ErrorCode::kFailedPrecondition,
            "an update is under way, in state {}; its own label comes with it",
            name_of(updates_.state())
        );
        answer({peer, message.call}, std::move(reply));
        return Ok{};
    }
    return fan_out(now, peer, std::move(message), labels_, kControlTimeout);
}
Result<> Admin::obey(TimePoint now, const std::string& peer, messages::ReleaseMemory message) {
    return fan_out(now, peer, std::move(message), memories_, kControlTimeout);
}
Result<> Admin::obey(TimePoint now, const std::string& peer, messages::ResumeMemory message) {
    return fan_out(now, peer, std::move(message), memories_, kControlTimeout);
}

Result<> Admin::obey(TimePoint, const std::string& peer, const messages::Shutdown& message) {
    messages::StatusReply tree;
    ports_.describe(tree);
    messages::ShutdownReply reply;
    reply.ok = true;
    reply.open_requests = tree.open_requests;
    answer({peer, message.call}, std::move(reply));
    ports_.shut_down(bounded_seconds(message.drain_s));
    return Ok{};
}

Result<> Admin::obey(TimePoint now, const std::string& peer, const messages::Abort& message) {
    if (aborts_.size() >= kCallsMax) return too_many(messages::Abort::kType);
    AbortCall call{
        .caller = {peer, message.call},
        .deadline = now + timeout_or(kControlTimeout, message.timeout_ms),
    };
    Aborted aborted = ports_.abort(message.all ? nullptr : &message.rids, message.message);
    call.ending = std::move(aborted.ending);
    call.reply.results = std::move(aborted.results);
    call.reply.ok = true;
    if (call.ending.empty()) {
        answer(call.caller, std::move(call.reply));
    } else {
        aborts_.push_back(std::move(call));
    }
    return Ok{};
}

// One of the calls that drive the update under way.
template <class Message>
Result<> Admin::drive(
    TimePoint now,
    const std::string& peer,
    const Message& message,
    void (UpdateCoordinator::*what
    )(TimePoint, UpdateCoordinator::Caller, const Message&, UpdateCoordinator::Out&)
) {
    UpdateCoordinator::Out out;
    (updates_.*what)(now, {peer, message.call, Message::kType}, message, out);
    carry_out(now, std::move(out));
    return Ok{};
}

Result<> Admin::obey(
    TimePoint now, const std::string& peer, const messages::UpdateWeights& message
) {
    if (joins_collection(message)) return drive(now, peer, message, &UpdateCoordinator::collect);
    return drive(now, peer, message, &UpdateCoordinator::update);
}
Result<> Admin::obey(
    TimePoint now, const std::string& peer, const messages::StageWeights& message
) {
    return drive(now, peer, message, &UpdateCoordinator::stage);
}
Result<> Admin::obey(TimePoint now, const std::string& peer, const messages::BeginUpdate& message) {
    return drive(now, peer, message, &UpdateCoordinator::begin_session);
}
Result<> Admin::obey(
    TimePoint now, const std::string& peer, const messages::UpdateBucket& message
) {
    return drive(now, peer, message, &UpdateCoordinator::bucket);
}
Result<> Admin::obey(
    TimePoint now, const std::string& peer, const messages::CommitWeights& message
) {
    return drive(now, peer, message, &UpdateCoordinator::commit);
}
Result<> Admin::obey(TimePoint now, const std::string& peer, const messages::DropStage& message) {
    return drive(now, peer, message, &UpdateCoordinator::drop);
}
Result<> Admin::obey(
    TimePoint now, const std::string& peer, const messages::RollbackWeights& message
) {
    return drive(now, peer, message, &UpdateCoordinator::rollback);
}

Result<> Admin::obey(TimePoint now, const std::string& peer, const messages::GetWeights& message) {
    if (tensor_reads_.size() >= kCallsMax) return too_many(messages::GetWeights::kType);
    const CallId id = std::exchange(next_call_, next(next_call_));
    const TimePoint deadline = now + timeout_or(kReadTimeout, message.timeout_ms);
    tensor_reads_.emplace(id, ReadCall<TensorRead>{{peer, message.call}, deadline, TensorRead{}});
    messages::WorkerReadTensor order;
    order.call = id;
    order.name = message.name;
    ports_.to_replica(ReplicaId{0}, encode(order));
    return Ok{};
}

Result<> Admin::obey(
    TimePoint now, const std::string& peer, const messages::WeightDigests& message
) {
    if (digest_reads_.size() >= kCallsMax) return too_many(messages::WeightDigests::kType);
    const CallId id = std::exchange(next_call_, next(next_call_));
    const TimePoint deadline = now + timeout_or(kReadTimeout, message.timeout_ms);
    digest_reads_.emplace(
        id, ReadCall<DigestRead>{{peer, message.call}, deadline, DigestRead(num_replicas_, tp_)}
    );
    messages::WorkerDigest order;
    order.call = id;
    ports_.to_all_replicas(encode(order));
    return Ok{};
}

Result<> Admin::obey(TimePoint now, const std::string& peer, const messages::InitGroup& message) {
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
    return order_group(now, {peer, message.call}, message.timeout_ms, std::move(order));
}

Result<> Admin::obey(
    TimePoint now, const std::string& peer, const messages::DestroyGroup& message
) {
    messages::WorkerGroup order;
    order.action = messages::GroupAction::kDestroy;
    order.spec.group = message.group;
    return order_group(now, {peer, message.call}, message.timeout_ms, std::move(order));
}

Result<> Admin::order_group(
    TimePoint now, const AdminCaller& caller, std::int64_t timeout_ms, messages::WorkerGroup order
) {
    if (group_calls_.size() >= kCallsMax) return too_many(messages::InitGroup::kType);
    const Duration timeout = timeout_or(kGroupTimeout, timeout_ms);
    const CallId id = std::exchange(next_call_, next(next_call_));
    group_calls_.emplace(
        id,
        ReadCall<GroupCall>{caller, now + timeout + kReplicaGrace, GroupCall(num_replicas_, tp_)}
    );
    order.call = id;
    order.timeout_ms = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
    ports_.to_all_replicas(encode(order));
    return Ok{};
}

void Admin::request_ended(OpenId request) {
    std::erase_if(aborts_, [&](AbortCall& call) {
        call.ending.erase(request);
        if (!call.ending.empty()) return false;
        answer(call.caller, std::move(call.reply));
        return true;
    });
}

// ---- answers ----

void Admin::answer_error(const AdminCaller& caller, const Error& error) {
    messages::ErrorReply reply;
    reply.error = error;
    answer(caller, std::move(reply));
}

// For status: what came of the latest calls about weights; `what` is the call's type.
void Admin::record(TimePoint now, std::string_view what, const messages::UpdateReply& reply) {
    if (reply.state == messages::UpdateState::kCollecting) return;  // nothing has come of it yet
    const bool is_effect = what == messages::UpdateWeights::kType ||
                           what == messages::CommitWeights::kType ||
                           what == messages::RollbackWeights::kType;
    if (is_effect) ++(reply.ok ? num_updates_ : num_updates_failed_);
    past_updates_.push_back(
        {now,
         {.what = std::string(what),
          .ok = reply.ok,
          .verdict = reply.verdict,
          .epoch = reply.epoch,
          .label = reply.label,
          .digest = reply.digest,
          .bytes = reply.bytes,
          .receive_s = reply.receive_s,
          .verify_s = reply.verify_s,
          .vote_s = reply.vote_s,
          .pause_s = reply.pause_s,
          .commit_s = reply.commit_s,
          .total_s = reply.total_s}}
    );
    if (past_updates_.size() > kUpdatesShown) past_updates_.pop_front();
}

void Admin::carry_out(TimePoint now, UpdateCoordinator::Out out) {
    say_version();  // before a commit is ordered: no token comes of a version that is not on record
    for (const UpdateCoordinator::Order& order : out.orders) {
        ports_.to_all_replicas(
            std::visit([](const auto& message) { return encode(message); }, order)
        );
    }
    if (updates_.has_weights()) {
        has_had_weights_ = true;
        lost_.reset();
    }
    if (keep_ && !updates_.is_torn() && updates_.version().epoch != keep_->version().epoch)
        ports_.to_replica(ReplicaId{0}, encode(keep_->committed(now, updates_.version())));
    for (auto& [caller, reply] : out.replies) {
        record(now, caller.what, reply);
        if (caller.peer.empty()) {  // ours: see close_collection()
            collected_ = std::move(reply);
        } else {
            answer(AdminCaller{caller.peer, caller.call}, std::move(reply));
        }
    }
    // A commit that is late stands, and may take for ever: who waits for it does not.
    if (is_closing_ && (collected_ || !updates_.is_busy())) release_held(now);
}

void Admin::say_version() {
    if (updates_.decided() == said_) return;
    said_ = updates_.decided();
    ports_.serves(said_);
}

template <class Visit>
void Admin::for_each_fan_out(Visit visit) {
    visit(statuses_);
    visit(pauses_);
    visit(continues_);
    visit(flushes_);
    visit(labels_);
    visit(memories_);
}

void Admin::tick(TimePoint now) {
    for_each_fan_out([&](auto& calls) {
        for (const auto& late : calls.take_late(now)) answer_error(late.caller, *late.error);
    });
    UpdateCoordinator::Out out;
    updates_.tick(now, out);
    carry_out(now, std::move(out));
    end_pause_that_is_over(now);
    std::erase_if(aborts_, [&](const AbortCall& call) {
        if (call.deadline > now) return false;
        answer_error(
            call.caller,
            make_error(
                ErrorCode::kDeadlineExceeded,
                "abort, phase finish: {} of {} requests have not ended, on {}",
                call.ending.size(),
                call.reply.results.size(),
                replicas_of(call.ending)
            )
        );
        return true;
    });
    std::erase_if(tensor_reads_, [&](const auto& entry) {
        if (entry.second.deadline > now) return false;
        answer_error(
            entry.second.caller,
            make_error(
                ErrorCode::kDeadlineExceeded,
                "get_weights, phase read: no answer in time from {}",
                entry.second.read.who_is_missing(tp_)
            )
        );
        return true;
    });
    std::erase_if(digest_reads_, [&](const auto& entry) {
        if (entry.second.deadline > now) return false;
        answer_error(
            entry.second.caller,
            make_error(
                ErrorCode::kDeadlineExceeded,
                "weight_digests, phase digest: no answer in time from {}",
                entry.second.read.who_is_missing()
            )
        );
        return true;
    });
    std::erase_if(group_calls_, [&](const auto& entry) {
        if (entry.second.deadline > now) return false;
        answer_error(
            entry.second.caller,
            make_error(
                ErrorCode::kDeadlineExceeded,
                "group, phase join: no answer in time from {}",
                entry.second.read.who_is_missing()
            )
        );
        return true;
    });
}

TimePoint Admin::next_deadline() const {
    TimePoint first = updates_.next_deadline().value_or(TimePoint::max());
    first = std::min({first, statuses_.next_deadline(), pauses_.next_deadline()});
    first = std::min({first, continues_.next_deadline(), flushes_.next_deadline()});
    first = std::min({first, labels_.next_deadline(), memories_.next_deadline()});
    if (paused_until_) first = std::min(first, *paused_until_);
    for (const AbortCall& call : aborts_) first = std::min(first, call.deadline);
    for (const auto& [id, call] : tensor_reads_) first = std::min(first, call.deadline);
    for (const auto& [id, call] : digest_reads_) first = std::min(first, call.deadline);
    for (const auto& [id, call] : group_calls_) first = std::min(first, call.deadline);
    return first;
}

void Admin::fail_all(const Error& error) {
    for_each_fan_out([&](auto& calls) {
        for (const auto& ended : calls.take_all(error)) answer_error(ended.caller, error);
    });
    UpdateCoordinator::Out out;
    updates_.fail(error.message, out);
    out.orders.clear();  // nobody is left to carry them out
    carry_out(TimePoint{}, std::move(out));
    for (const HeldCall& call : std::exchange(held_, {})) answer_error(call.caller, error);
    for (const AbortCall& call : std::exchange(aborts_, {})) answer_error(call.caller, error);
    for (const auto& [id, call] : std::exchange(tensor_reads_, {}))
        answer_error(call.caller, error);
    for (const auto& [id, call] : std::exchange(digest_reads_, {}))
        answer_error(call.caller, error);
    for (const auto& [id, call] : std::exchange(group_calls_, {})) answer_error(call.caller, error);
}

}  // namespace pitstop::tokenizer
