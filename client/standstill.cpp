#include "client/standstill.h"

#include <fmt/format.h>

namespace pitstop {
namespace {

std::string released_tags(const messages::ReplicaStatus& replica) {
    std::string names;
    for (const messages::TagMemory& memory : replica.memory) {
        if (memory.state == messages::MemoryState::kResident) continue;
        names += fmt::format("{}{}", names.empty() ? "" : " and ", name_of(memory.tag));
    }
    return names;
}

}  // namespace

std::optional<std::string> why_it_stands(const messages::ReplicaStatus& replica) {
    std::string why;
    const auto add = [&](const std::string& part) { why += (why.empty() ? "" : "; ") + part; };
    if (const std::string tags = released_tags(replica); !tags.empty())
        add(fmt::format("memory of {} is released; resume takes it again", tags));
    if (!replica.has_weights) add("there are no weights; a complete update brings them");
    if (!replica.pause_mode.empty()) {
        add(fmt::format(
            "paused ({}) for {:.1f} s; continue ends the pause",
            replica.pause_mode,
            replica.paused_s
        ));
    }
    if (why.empty() && replica.state == messages::ReplicaState::kUpdating)
        add("an update is taking effect");
    if (why.empty() && replica.state == messages::ReplicaState::kLoading)
        add("the model is being loaded");
    return why.empty() ? std::nullopt : std::optional(why);
}

std::optional<std::string> why_it_stands(const messages::StatusReply& status) {
    for (const messages::ReplicaStatus& replica : status.replicas) {
        std::optional<std::string> why = why_it_stands(replica);
        if (!why) continue;
        if (status.replicas.size() == 1) return why;
        return fmt::format("replica {}: {}", raw(replica.replica), *why);
    }
    return std::nullopt;
}

}  // namespace pitstop
