#include "tokenizer_proc/group_call.h"

#include <fmt/format.h>

namespace pitstop::tokenizer {

std::optional<messages::GroupReply> GroupCall::add(messages::WorkerGrouped part) {
    const bool is_ours = raw(part.replica) >= 0 && raw(part.replica) < num_replicas_ &&
                         raw(part.rank) >= 0 && raw(part.rank) < tp_;
    if (!is_ours) return std::nullopt;
    parts_.emplace(std::pair(part.replica, part.rank), std::move(part));
    if (parts_.size() < static_cast<std::size_t>(num_replicas_) * static_cast<std::size_t>(tp_))
        return std::nullopt;
    messages::GroupReply reply;
    reply.ok = true;
    for (auto& [who, answer] : parts_) {
        answer.call = CallId{};
        if (!answer.verdict.is_done()) {
            if (reply.ok) reply.verdict.code = answer.verdict.code;
            reply.ok = false;
            reply.verdict.message += fmt::format(
                "{}replica {} rank {}: {}",
                reply.verdict.message.empty() ? "" : "; ",
                raw(answer.replica),
                raw(answer.rank),
                answer.verdict.message
            );
        }
        reply.ranks.push_back(std::move(answer));
    }
    return reply;
}

std::string GroupCall::who_is_missing() const {
    std::string names;
    for (int replica = 0; replica < num_replicas_; ++replica) {
        for (int rank = 0; rank < tp_; ++rank) {
            if (parts_.contains({ReplicaId{replica}, Rank{rank}})) continue;
            names += fmt::format("{}replica {} rank {}", names.empty() ? "" : ", ", replica, rank);
        }
    }
    return names;
}

}  // namespace pitstop::tokenizer
