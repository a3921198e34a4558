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
                "{} groups are joined, the most allowed; destroy one",
                kGroupsMax
            );
        }
        if (!groups_.try_emplace(spec.group).second) {
            return make_error(
                ErrorCode::kAlreadyExists,
                "group '{}' is joined already; destroy it first",
                spec.group
            );
        }
    }
    auto joined = spec.backend == messages::GroupBackend::kHost
                      ? join_host_group(spec, rank, patience)
                      : join_nccl_group(spec, rank, *nccl_turn_, patience);
    const MutexLock lock(mutex_);
    if (!joined) {
        groups_.erase(spec.group);
        return std::move(joined).error();
    }
    groups_[spec.group] = *std::move(joined);
    return Ok{};
}

Result<> Groups::destroy(const std::string& name) {
    std::shared_ptr<BroadcastGroup> group;
    {
        const MutexLock lock(mutex_);
        const auto found = groups_.find(name);
        if (found == groups_.end() || found->second == nullptr)
            return make_error(ErrorCode::kNotFound, "The group to be destroyed does not exist.");
        group = std::move(found->second);
        groups_.erase(found);
    }
    group->leave();
    return Ok{};
}

Result<std::shared_ptr<BroadcastGroup>> Groups::find(const std::string& name) {
    const MutexLock lock(mutex_);
    const auto found = groups_.find(name);
    if (found != groups_.end() && found->second != nullptr) return found->second;
    return make_error(
        ErrorCode::kNotFound,
        "Group {} is not joined. Please call `init_weights_update_group` first.",
        name
    );
}

Result<> Groups::make_room(const std::string& name, std::int64_t bytes_max) {
    ASSIGN_OR_RETURN(const std::shared_ptr<BroadcastGroup> group, find(name));
    return group->make_room(bytes_max);
}

Result<Landed> Groups::receive(
    const std::string& name,
    const Broadcast& broadcast,
    std::vector<std::byte>& host,
    const Patience& patience
) {
    ASSIGN_OR_RETURN(const std::shared_ptr<BroadcastGroup> group, find(name));
    Result<Landed> landed = group->receive(broadcast, host, patience);
    if (!landed) refuse(name, landed.error().message);
    return landed;
}

void Groups::refuse(const std::string& name, const std::string& reason) {
    const Result<std::shared_ptr<BroadcastGroup>> group = find(name);
    if (!group) return;
    (*group)->refuse(reason);
    const MutexLock lock(mutex_);
    const auto found = groups_.find(name);
    if (found != groups_.end() && found->second == *group) groups_.erase(found);
}

}  // namespace pitstop::tp_worker
