#include "messages/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pitstop::messages {

std::optional<std::string> invalid(const RankJoin& message) {
    if (message.tp < 1) return "tp: at least 1";
    if (raw(message.rank) < 0 || raw(message.rank) >= message.tp)
        return fmt::format("rank: {} is not in [0, {})", raw(message.rank), message.tp);
    if (message.nodes < 1 || message.nodes > kNodesMax)
        return fmt::format("nodes: {} is not in [1, {}]", message.nodes, kNodesMax);
    if (message.node < 0 || message.node >= message.nodes)
        return fmt::format("node: {} is not in [0, {})", message.node, message.nodes);
    // These texts appear in logs, in the status, and in messages to other machines.
    for (const auto& [field, name] :
         {std::pair{"build", &message.build}, {"host", &message.host}}) {
        if (name->size() > RankJoin::kNameBytesMax)
            return fmt::format("{}: more than {} bytes", field, RankJoin::kNameBytesMax);
        if (std::ranges::any_of(*name, [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
            return fmt::format("{}: control characters", field);
    }
    if (message.settings.size() > RankJoin::kSettingsMax)
        return fmt::format("settings: more than {}", RankJoin::kSettingsMax);
    for (const std::string& setting : message.settings)
        if (setting.size() > RankJoin::kSettingBytesMax)
            return fmt::format("settings: one of more than {} bytes", RankJoin::kSettingBytesMax);
    return std::nullopt;
}

std::optional<std::string> invalid(const RankPart& message) {
    if (message.meeting < 1) return "meeting: counted from 1";
    if (message.limit_ms < 0 || message.limit_ms > kRankLimitMsMax)
        return fmt::format("limit_ms: {} is not in [0, {}]", message.limit_ms, kRankLimitMsMax);
    const auto num = static_cast<std::int64_t>(message.data.values.size());
    if (message.num_bytes < 0 || message.num_bytes > static_cast<std::int64_t>(kRankPartBytesMax))
        return fmt::format("num_bytes: {} is not in [0, {}]", message.num_bytes, kRankPartBytesMax);
    if (num != 0 && num != message.num_bytes)
        return fmt::format("data: {} bytes; num_bytes says {}", num, message.num_bytes);
    return std::nullopt;
}

}  // namespace pitstop::messages
