#include "tp_worker/groups/groups.h"

#include "tp_worker/groups/host_group.h"
#include "tp_worker/groups/nccl_group.h"

#include <utility>

namespace pitstop::tp_worker {

Result<> Groups::init(
    const messages::GroupSpec& spec, std::int64_t rank, const Patience& patience
) {
    {
        const MutexLock lock(mutex_);
        std::erase_if(groups_, [](const auto& entry) {
            return entry.second != nullptr && entry.second->is_over();
        });
        if (groups_.size() >= kGroupsMax) {
            return make_error(
                ErrorCode::kResourceExhausted,
                "{} groups are joined, the most there may be; destroy one",
                kGroupsMax
            );
        }
        if (!groups_.try_emplace(spec.group).second) {
            return make_error(
                ErrorCode::kAlreadyExists, "group '{}' is joined; destroy it first", spec.group
            );
        }
    }
    auto joined = spec.backend == messages::GroupBackend::kHost
                      ? join_host_group(spec, rank, patience)
                      : join_nccl_group(spec, rank, patience);
    const MutexLock lock(mutex_);
    if (!joined) {
        groups_.erase(spec.group);
        return std::move(joined).error();
    }
    groups_[spec.group] = *std::move(joined);
    return Ok{};
}

Result<> Groups::destroy(const std::string& name) {
    const MutexLock lock(mutex_);
    const auto found = groups_.find(name);
    if (found == groups_.end() || found->second == nullptr)
        return make_error(ErrorCode::kNotFound, "The group to be destroyed does not exist.");
    groups_.erase(found);
    return Ok{};
}

std::shared_ptr<BroadcastGroup> Groups::find(const std::string& name) {
    const MutexLock lock(mutex_);
    const auto found = groups_.find(name);
    return found == groups_.end() ? nullptr : found->second;
}

Result<> Groups::receive(
    const std::string& name, std::span<std::byte> out, const Patience& patience
) {
    const std::shared_ptr<BroadcastGroup> group = find(name);
    if (group == nullptr) {
        return make_error(
            ErrorCode::kNotFound,
            "Group {} is not joined. Please call `init_weights_update_group` first.",
            name
        );
    }
    Result<> received = group->receive(out, patience);
    if (!received) refuse(name, received.error().message);
    return received;
}

void Groups::refuse(const std::string& name, const std::string& reason) {
    const std::shared_ptr<BroadcastGroup> group = find(name);
    if (group == nullptr) return;
    group->refuse(reason);
    const MutexLock lock(mutex_);
    const auto found = groups_.find(name);
    if (found != groups_.end() && found->second == group) groups_.erase(found);
}

}  // namespace pitstop::tp_worker
