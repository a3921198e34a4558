#include "messages/groups.h"

#include "messages/weight_source.h"

#include <fmt/format.h>

namespace pitstop::messages {
namespace {

using Problem = std::optional<std::string>;

constexpr std::size_t kUniqueIdBytes = 128;  // NCCL_UNIQUE_ID_BYTES
constexpr std::int64_t kWorldSizeMax = 65536;

Problem invalid_group(std::string_view group) {
    if (!group.empty() && group.size() <= kGroupNameBytesMax) return std::nullopt;
    return fmt::format(
        "group has {} bytes; 1 to {} are accepted", group.size(), kGroupNameBytesMax
    );
}

}  // namespace

Problem invalid(const InitGroup& message) {
    const GroupSpec& spec = message.spec;
    if (auto problem = invalid_group(spec.group)) return problem;
    if (spec.world_size < 2 || spec.world_size > kWorldSizeMax) {
        return fmt::format(
            "world_size is {}; accepted is 2 to {}, including the trainer's rank",
            spec.world_size,
            kWorldSizeMax
        );
    }
    if (spec.rank_offset < 1 || spec.rank_offset >= spec.world_size) {
        return fmt::format(
            "rank_offset is {}; accepted is 1 (0 is the trainer) to {}",
            spec.rank_offset,
            spec.world_size - 1
        );
    }
    if (spec.store_version < 1 || spec.store_version > 2)
        return fmt::format("store_version is {}; accepted are 1 and 2", spec.store_version);
    const bool is_direct =
        spec.backend == GroupBackend::kNccl &&
        (spec.rendezvous == Rendezvous::kDirect ||
         (spec.rendezvous == Rendezvous::kVllm && !spec.unique_id.values.empty()));
    if (is_direct && spec.unique_id.values.size() != kUniqueIdBytes) {
        return fmt::format(
            "unique_id has {} bytes; NCCL's has {}", spec.unique_id.values.size(), kUniqueIdBytes
        );
    }
    if (!is_direct && (spec.address.empty() || spec.address.size() > kHandleBytesMax))
        return "address is empty or too long; name the trainer's host";
    if (!is_direct && (spec.port < 1 || spec.port > 65535))
        return fmt::format("port is {}; accepted is 1 to 65535", spec.port);
    return std::nullopt;
}

Problem invalid(const DestroyGroup& message) { return invalid_group(message.group); }

}  // namespace pitstop::messages
