// The world's doors: every call and every request passes through them, and each waiting caller is
// answered once.
#include "messages/codec.h"
#include "messages/door_envelope.h"
#include "messages/message_list.h"
#include "tests/sim/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace pitstop::sim {
namespace {

using std::chrono::milliseconds;

// A failed send is retried after this long.
constexpr auto kRetryAfter = milliseconds(1);

}  // namespace

void World::tell_doors(messages::Frames frames) {
    tokenizer::DoorsInput in;
    in.from_tree.push_back(bus::Received{.frames = std::move(frames)});
    turn_of_doors(std::move(in));
}

void World::say_frames(const std::string& peer, messages::Door door, messages::Frames frames) {
    add_tree(frames, identity_.id());
    tokenizer::DoorsInput in;
    in.from_clients.emplace_back(door, bus::Received{.peer = peer, .frames = std::move(frames)});
    turn_of_doors(std::move(in));
}

void World::turn_of_doors(tokenizer::DoorsInput in) {
    in.now = now_;
    in.entropy = {random_.next(), random_.next()};
    in.unsent_to_clients = std::exchange(unsent_to_clients_, {});
    in.unsent_to_replicas = std::exchange(unsent_to_replicas_, {});
    // Returned control messages are sent again first.
    std::map<ReplicaId, std::int64_t> num_again;
    for (const tokenizer::ToReplica& message : in.unsent_to_replicas) {
        if (message.socket == tokenizer::ReplicaSocket::kControl) ++num_again[message.replica];
    }
    tokenizer::DoorsOutput out = doors_->turn(std::move(in));
    std::set<std::pair<ReplicaId, tokenizer::ReplicaSocket>> full;
    for (tokenizer::ToReplica& message : out.to_replicas) {
        const bool is_control = message.socket == tokenizer::ReplicaSocket::kControl;
        if (is_control && num_again[message.replica]-- <= 0 && message.replica == ReplicaId{0})
            watch_order(message.frames);
        const std::pair receiver{message.replica, message.socket};
        if (is_active_ && has_faults_ && random_.once_in(60)) full.insert(receiver);
        if (full.contains(receiver)) {
            unsent_to_replicas_.push_back(std::move(message));
        } else {
            send_to_replica(message);
        }
    }
    send_to_clients(std::move(out.to_clients));
    cancel_jobs(out.cancelled);
    take_jobs(std::move(out.jobs));
    TimePoint wake_at = out.wake_at;
    if (!unsent_to_clients_.empty() || !unsent_to_replicas_.empty()) wake_at = now_ + kRetryAfter;
    if (wake_at == TimePoint::max() || (doors_wake_at_ && *doors_wake_at_ <= wake_at)) return;
    doors_wake_at_ = wake_at;
    at(wake_at, [this, wake_at] {
        if (doors_wake_at_ != wake_at) return;  // an earlier turn was due
        doors_wake_at_.reset();
        turn_of_doors({});
    });
}

// Passes an update's order to the books at the time of the decision.
void World::watch_order(const messages::Frames& frames) {
    std::vector<tokenizer::ReplicaOrder> orders;
    const Result<bool> is_order = messages::dispatch_to(frames, orders);
    if (!is_order) return oracle_.fail("of the doors: " + is_order.error().message);
    for (const tokenizer::ReplicaOrder& order : orders) {
        watch_order(order);
        // The order shows that the current call was not refused.
        if (fate_ordered_) draw_fate(*std::exchange(fate_ordered_, std::nullopt));
    }
}

void World::watch_order(const tokenizer::ReplicaOrder& order) {
    const auto* stage = std::get_if<messages::UpdateStage>(&order);
    if (stage != nullptr && !stage->spec.adapter.empty())
        loads_.emplace(stage->update, stage->spec.adapter);
    const auto* back = std::get_if<messages::UpdateRollback>(&order);
    if (back != nullptr && !back->adapter.empty()) loads_.emplace(back->update, back->adapter);
    const bool is_of_adapter =
        std::visit([&](const auto& each) { return loads_.contains(each.update); }, order);
    sessions_.ordered(now_, order);
    trainers_.ordered(order);
    if (!is_of_adapter) collections_.ordered(order, is_publishing(), updates().version().epoch);
    may_tear_ =
        may_tear_ || (stage != nullptr && stage->spec.mode == messages::UpdateMode::kDirect);
    const auto* drop = std::get_if<messages::UpdateDrop>(&order);
    dropping_ = drop != nullptr ? drop->update : messages::UpdateId{};
    if (drop == nullptr) return;
    watch_drop(drop->update);
    note_drop(*drop);
}

// Returns whether a call that publishes a collection is waiting.
bool World::is_publishing() const {
    return std::ranges::any_of(calls_, [this](const auto& entry) {
        const Call& call = entry.second;
        if (call.num_answers > 0) return false;
        if (call.name == messages::ResumeMemory::kType) return ends_standstill(call.tags);
        return call.name == messages::ContinueGeneration::kType ||
               call.name == messages::CommitWeights::kType;
    });
}

// Returns whether generation continues after a resume of these tags: no replica is paused, and no
// other memory is released.
bool World::ends_standstill(const std::vector<messages::MemoryTag>& tags) const {
    return std::ranges::none_of(standings_, [&](const auto& entry) {
        const messages::ReplicaStanding& standing = entry.second;
        const bool is_covered =
            tags.empty() || std::ranges::all_of(standing.released, [&](messages::MemoryTag tag) {
                return std::ranges::find(tags, tag) != tags.end();
            });
        return standing.is_paused || !is_covered;
    });
}

void World::send_to_replica(const tokenizer::ToReplica& message) {
    const auto r = static_cast<std::size_t>(raw(message.replica));
    if (message.socket == tokenizer::ReplicaSocket::kRequests) {
        Result<messages::TokenizedRequest> request =
            decode<messages::TokenizedRequest>(message.frames, messages::UnknownFields::kRefuse);
        if (!request) return oracle_.fail("of the doors: " + request.error().message);
        oracle_.submitted(*request);
        check_prompt(*request);
        placed_.push_back({request->key, submitting_.peer, submitting_.rid});
        deliver(replicas_[r].requests, [this, r, request = *std::move(request)] {
            replicas_[r].inbox.requests.push_back(request);
            make_turn(r);
        });
        return;
    }
    std::vector<scheduler::Control> control;
    const Result<bool> taken = messages::dispatch_to(message.frames, control);
    if (!taken || !*taken) return oracle_.fail("the doors sent a replica " + message.frames.type);
    if (auto* drop = std::get_if<messages::UpdateDrop>(&control.front())) withhold_torn(r, *drop);
    if (const auto* unload = std::get_if<messages::UnloadAdapter>(&control.front()))
        oracle_.adapters().unloaded(unload->name);
    if (const auto* ends = std::get_if<messages::EndRequests>(&control.front())) {
        for (const RequestKey key : ends->keys) {
            if (ends->cause == messages::EndCause::kAbort) {
                oracle_.abort_asked(key);
            } else {
                oracle_.silenced(key);
            }
        }
    }
    deliver(replicas_[r].control, [this, r, control] {
        replicas_[r].inbox.control.push_back(control.front());
        make_turn(r);
    });
}

// A replica whose own ranks were overwritten knows that it is torn, even if the door does not tell
// it (P2 is checked at both ends). So this clears the door's `torn` at random.
void World::withhold_torn(std::size_t r, messages::UpdateDrop& drop) {
    const bool is_own = std::ranges::any_of(replicas_[r].ranks, [](const Rank& rank) {
        return rank.worker->is_torn();
    });
    if (!drop.torn || !is_own || !random_.once_in(3)) return;
    drop.torn = false;
    ++report_.num_words_withheld;
}

// A client may not read for a while, or be gone.
void World::send_to_clients(std::vector<tokenizer::ToClient> messages) {
    std::map<std::string, bus::Sent> unsent;
    for (tokenizer::ToClient& message : messages) {
        const bool is_data = message.door == messages::Door::kData;
        Client& client = clients_[message.peer];
        if (is_data && is_active_ && has_faults_ && random_.once_in(100))
            client.reads_again_at = now_ + some(100, 40'000);
        if (is_data && now_ < client.reads_again_at) unsent[message.peer] = bus::Sent::kFull;
        if (is_data && client.is_gone) unsent[message.peer] = bus::Sent::kGone;
        const auto why = unsent.find(message.peer);
        if (is_data && why != unsent.end()) {
            unsent_to_clients_.push_back({std::move(message), why->second});
        } else {
            heard_by_client(message);
        }
    }
}

void World::heard_by_client(const tokenizer::ToClient& message) {
    messages::Frames frames = message.frames;
    if (const Result<std::string> tree = take_tree(frames); !tree)
        return oracle_.fail("of the doors: " + tree.error().message);
    if (frames.type == messages::Outputs::kType) {
        const Result<messages::Outputs> outputs =
            decode<messages::Outputs>(frames, messages::UnknownFields::kRefuse);
        if (!outputs) return oracle_.fail("of the doors: " + outputs.error().message);
        for (const messages::OutputChunk& chunk : outputs->chunks)
            heard_of_request(message.peer, chunk.rid, chunk.finish.has_value());
        return;
    }
    if (const std::string rid = messages::peek_string(frames, "rid"); !rid.empty())
        return heard_of_request(message.peer, rid, /*is_end=*/true);
    heard_of_call(frames);
}

void World::heard_of_request(const std::string& peer, const std::string& rid, bool is_end) {
    bool& is_open = clients_[peer].open[rid];
    if (!is_open) oracle_.fail(fmt::format("client {}: {} goes on after its end (P4)", peer, rid));
    if (is_end) is_open = false;
}

void World::heard_of_call(const messages::Frames& frames) {
    const std::uint64_t id = messages::peek_uint(frames, "call");
    const auto place = calls_.find(id);
    if (place == calls_.end())
        return oracle_.fail(fmt::format("an answer to call {}, which nobody made", id));
    Call& call = place->second;
    if (++call.num_answers > 1)
        return oracle_.fail(fmt::format("{} {} was answered twice", call.name, id));
    if (frames.type == messages::ErrorReply::kType) {
        const Result<messages::ErrorReply> error =
            decode<messages::ErrorReply>(frames, messages::UnknownFields::kRefuse);
        // A replica answers by its own deadline. Exceptions: calls that wait for an update, or for
        // the answers of a stuck worker.
        const bool is_late = error && error->error.code == ErrorCode::kDeadlineExceeded;
        if (error && error->error.code == ErrorCode::kAborted) collections_.told_of_loss();
        if (error) heard_of_refusal(call, error->error);
        if (is_late && !call.is_held && !(stuck_any_ && call.is_of_workers))
            oracle_.fail(fmt::format("{} {}: {} (P5)", call.name, id, error->error.message));
        return;
    }
    if (call.ids) return check_tokens(call, frames);
    if (frames.type == messages::PauseReply::kType &&
        messages::peek_string(frames, "message").find("take no effect") != std::string::npos)
        trainers_.told_of_loss(now_);
    if (frames.type == messages::ContinueReply::kType) return heard_to_go_on(call, id, frames);
    if (frames.type != messages::UpdateReply::kType) return;
    const Result<messages::UpdateReply> reply =
        decode<messages::UpdateReply>(frames, messages::UnknownFields::kRefuse);
    if (!reply) return oracle_.fail("of the doors: " + reply.error().message);
    if (reply->adapter.empty()) check_told(*reply);
    if (!reply->adapter.empty()) check_told_of_adapter(call, *reply);
    if (!reply->ok) heard_of_part(call, reply->verdict.error());
    if (reply->ok == !reply->verdict.is_done())
        oracle_.fail("an update's answer is ok with an error, or not ok without");
    if (call.heard) call.heard(*reply);
}

void World::heard_of_refusal(const Call& call, const Error& why) {
    const bool goes_on = call.name == messages::ContinueGeneration::kType ||
                         call.name == messages::ResumeMemory::kType;
    const bool is_told =
        why.code == ErrorCode::kAborted || why.message.starts_with("the collected update failed");
    if (goes_on && is_told) trainers_.told_of_loss(now_);
    heard_of_part(call, why);
    if (call.is_of_trainer) trainers_.refused(now_, call.peer, why);
}

void World::heard_to_go_on(const Call& call, std::uint64_t id, const messages::Frames& frames) {
    const Result<messages::ContinueReply> reply =
        decode<messages::ContinueReply>(frames, messages::UnknownFields::kRefuse);
    if (!reply) return oracle_.fail("of the doors: " + reply.error().message);
    if (!reply->ok) return;
    // After a loss, calls are refused until a client continues.
    trainers_.told_of_loss(now_);
    // Another call may have dropped the collection meanwhile; or the collection is being committed,
    // and waits for requests that a pause has frozen.
    const bool is_dropped = call.num_dropped != collections_.num_dropped;
    const bool is_committing = updates().is_busy() && !updates().has_collection();
    if (call.newer_than && !is_dropped && !is_committing &&
        updates().version().epoch <= *call.newer_than)
        oracle_.fail(fmt::format("{} {} goes on before what was collected", call.name, id));
    // Another call may have been told of the loss meanwhile. No call is told if no version is left
    // to serve.
    if (call.is_after_loss && !updates().must_be_complete() &&
        collections_.is_lost(updates().version().epoch))
        oracle_.fail(fmt::format("{} {} goes on after a loss, without a word", call.name, id));
}

}  // namespace pitstop::sim
