// Handles the answers of the tree's processes to the calls that Admin passed on.
#include "base/log.h"
#include "tokenizer_proc/admin.h"

#include <algorithm>
#include <utility>

namespace pitstop::tokenizer {
namespace {

template <class Part>
bool is_done(const Part& part) {
    return part.verdict.is_done();
}

template <class Part>
std::string who_sent(const Part& part) {
    std::string who = fmt::format("replica {}", raw(part.replica));
    if constexpr (OfRank<Part>) who += fmt::format(" rank {}", raw(part.rank));
    return who;
}

// Makes one reply of all parts: ok if each part is.
template <class Reply, class Part>
Reply reply_of(std::vector<Part> parts) {
    Reply reply;
    reply.ok = true;
    for (Part& part : parts) {
        part.call = CallId{};
        std::string& text = reply.verdict.message;
        if (!is_done(part) && reply.ok) {
            reply.ok = false;
            reply.verdict.code = part.verdict.code;
            text.clear();  // lists only errors, once there is one
        }
        if (part.verdict.message.empty() || is_done(part) != reply.ok) continue;
        if (!text.empty()) text += "; ";
        text += who_sent(part) + ": " + part.verdict.message;
    }
    if constexpr (requires { reply.ranks; }) {
        reply.ranks = std::move(parts);
    } else {
        reply.parts = std::move(parts);
    }
    return reply;
}

}  // namespace

Result<bool> Admin::dispatch_part(TimePoint now, const messages::Frames& frames) {
    using Parts = decltype(
        messages::ReplicaParts{} + messages::MessageList<
                                       messages::UpdatePart,
                                       messages::UpdateWaits,
                                       messages::ReplicaStanding,
                                       messages::WorkerTensor,
                                       messages::WorkerDigests,
                                       messages::WorkerGrouped,
                                       messages::WorkerKept>{}
    );
    return Parts::dispatch(frames, messages::UnknownFields::kIgnore, [&](auto part) -> Result<> {
        handle_part(now, std::move(part));
        return Ok{};
    });
}

template <class Part>
void Admin::handle_part(TimePoint now, Part part) {
    if constexpr (std::is_same_v<Part, messages::WorkerDigests>) {
        // A single refusal decides the answer.
        if (!is_done(part) && calls_.find<Gathered<Part>>(part.call) != nullptr) {
            const AdminCaller caller = calls_.close(part.call);
            return finish(now, caller, std::vector{std::move(part)});
        }
    }
    if (auto complete = calls_.handle_part(std::move(part)))
        finish(now, complete->caller, std::move(complete->parts));
    if constexpr (std::is_same_v<Part, messages::MemoryPart>) start_held(now);
}

template <class Part>
void Admin::finish(TimePoint, const AdminCaller& caller, std::vector<Part> parts) {
    if constexpr (std::is_same_v<Part, messages::WorkerDigests>) {
        if (std::ranges::all_of(parts, is_done<Part>)) return answer(caller, merged(parts));
        messages::DigestsReply refusal;
        refusal.epoch = parts.front().epoch;
        refusal.label = std::move(parts.front().label);
        refusal.verdict = parts.front().verdict;
        refusal.verdict.message = fmt::format(
            "replica {}: {}", raw(parts.front().replica), parts.front().verdict.message
        );
        return answer(caller, std::move(refusal));
    } else if constexpr (std::is_same_v<Part, messages::LabelPart>) {
        if (std::ranges::all_of(parts, is_done<Part>)) {
            updates_.relabel(parts.front().label);
            say_version();
        }
    } else if constexpr (std::is_same_v<Part, messages::MemoryPart>) {
        // If each replica either had nothing to do or has succeeded now, the call has succeeded.
        const bool is_any_done = std::ranges::any_of(parts, is_done<Part>);
        for (Part& part : parts) {
            if (is_any_done && part.was_done) part.verdict.code.reset();
        }
    }
    if constexpr (std::is_same_v<Part, messages::WorkerGrouped>) {
        answer(caller, reply_of<messages::GroupReply>(std::move(parts)));
    } else if constexpr (!std::is_same_v<Part, messages::WorkerDigests>) {
        answer(caller, reply_of<messages::ReplyOf<Part>>(std::move(parts)));
    }
}

void Admin::finish(
    TimePoint now, const AdminCaller& caller, std::vector<messages::ReplicaStatus> parts
) {
    messages::StatusReply reply;
    for (messages::ReplicaStatus& replica : parts) {
        replica.call = CallId{};
        // The tables are summed into one, so the reply's size does not depend on the
        // number of replicas.
        messages::add_load(reply.expert_load, std::exchange(replica.expert_load, std::nullopt));
    }
    reply.replicas = std::move(parts);
    reply.server = facts_.server;
    reply.model = facts_.model;
    reply.weights_path = version().path;
    reply.uptime_s = facts_.uptime_s;
    reply.clients = facts_.clients;
    reply.open_requests = facts_.open_requests;
    reply.refused_total = facts_.refused_total;
    reply.listeners = facts_.listeners;
    reply.is_ready = has_had_weights_;
    reply.lost = lost_;
    if (keep_) reply.keep = keep_->status(now);
    reply.collecting = updates_.collecting(now);
    reply.session = updates_.session(now);
    reply.lost_calls = lost_calls_.report(now);
    history_.report(now, reply);
    answer(caller, std::move(reply));
}

void Admin::handle_part(TimePoint now, const messages::UpdatePart& part) {
    drive(now, [&](UpdateCoordinator::Out& out) { updates_.handle_part(now, part, out); });
}

void Admin::handle_part(TimePoint, messages::UpdateWaits waits) {
    updates_.record_awaited(std::move(waits));
}

void Admin::handle_part(TimePoint, messages::WorkerTensor part) {
    const CallId id = part.call;
    auto* read = calls_.find<TensorRead>(id);
    if (read == nullptr) return;  // too late, or a duplicate
    std::optional<Result<messages::WeightsReply>> whole = read->handle_piece(std::move(part));
    if (!whole) return;
    const AdminCaller caller = calls_.close(id);
    if (*whole) {
        answer(caller, **std::move(whole));
    } else {
        answer_error(caller, whole->error());
    }
}

void Admin::handle_part(TimePoint now, const messages::WorkerKept& part) {
    if (!keep_) return;
    const std::optional<messages::WorkerKeep> next = keep_->part(now, part);
    if (next) give_order(*next, ReplicaId{0});
    const messages::KeepStatus status = keep_->status(now);
    if (status.state == messages::KeepState::kFailed && next) {
        spdlog::warn("epoch {} is not kept: {}", raw(status.epoch), status.message);
    } else if (status.state == messages::KeepState::kKept) {
        spdlog::info("epoch {} is kept in {}", raw(status.epoch), status.path);
    }
}

}  // namespace pitstop::tokenizer
