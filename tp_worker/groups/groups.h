// The groups that this rank has joined, for broadcasts from a trainer (messages/groups.h).
// Broadcasts and their failures are the same for each transport:
//
//   host_group.h  TCP, into the host's memory
//   nccl_group.h  NCCL, into the GPU's
//
// Thread:  any; a group is used by one thread at a time.
// Bounded: kGroupsMax.
#pragma once

#include "base/mutex.h"
#include "base/result.h"
#include "kernels/runtime/nccl.h"
#include "messages/groups.h"
#include "tp_worker/groups/nccl_turn.h"
#include "tp_worker/groups/tcp_stream.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {

// The trainer's next broadcast.
struct Broadcast {
    std::int64_t num = 0;  // elements
    kernels::NcclType type = kernels::NcclType::kBytes;

    [[nodiscard]] std::int64_t bytes() const { return num * kernels::bytes_of(type); }
};

// The place where a broadcast was stored. Valid until the group's next receive().
struct Landed {
    std::span<const std::byte> bytes{};
    bool is_on_gpu = false;
    std::shared_ptr<const void> owner{};  // shared with the group, which may be destroyed meanwhile
};

// One rank's end of a group whose rank 0 is a trainer.
class BroadcastGroup : public std::enable_shared_from_this<BroadcastGroup> {
  public:
    virtual ~BroadcastGroup() = default;
    // Called before an update whose largest broadcast has this many bytes; allocates memory for it
    // if the group receives into its own memory. Errors: kTooLarge, kResourceExhausted; nothing was
    // received then.
    virtual Result<> make_room(std::int64_t bytes_max) = 0;
    // Waits for the trainer's next broadcast, which must match `broadcast`. The bytes land in
    // `host` if the group has no memory of its own. After an error the group is unusable.
    virtual Result<Landed> receive(
        const Broadcast& broadcast, std::vector<std::byte>& host, const Patience& patience
    ) = 0;
    // Tells the trainer, if the backend can, that nothing more will be received.
    virtual void refuse(const std::string& reason) = 0;
    // Leaves the trainer's group at the same time as the trainer.
    virtual void leave() = 0;
    // Returns whether the trainer is known to be gone: no broadcast will follow.
    [[nodiscard]] virtual bool is_over() = 0;
};

class Groups {
  public:
    static constexpr std::size_t kGroupsMax = 64;

    // `nccl_turn`: shared by everything in this process that uses NCCL.
    explicit Groups(std::shared_ptr<NcclTurn> nccl_turn) : nccl_turn_(std::move(nccl_turn)) {}
    Groups() : Groups(std::make_shared<NcclTurn>()) {}

    // Joins as `rank` of the group, and waits as long as the backend's rendezvous does. Groups
    // whose trainers died are removed first.
    // Errors: kAlreadyExists, kResourceExhausted, kUnsupported, those of the rendezvous.
    Result<> init(const messages::GroupSpec& spec, std::int64_t rank, const Patience& patience);
    // Leaves the group. Errors: kNotFound if no group has this name.
    Result<> destroy(const std::string& name);

    // Called before an update from the group. Errors: kNotFound, and those of the
    // group's make_room().
    Result<> make_room(const std::string& name, std::int64_t bytes_max);
    // Waits for the next broadcast. An error ends the group: the trainer is told, and a new group
    // of the same name may be joined.
    Result<Landed> receive(
        const std::string& name,
        const Broadcast& broadcast,
        std::vector<std::byte>& host,
        const Patience& patience
    );
    // Ends the group like an error of receive(): the announced broadcasts cannot be received.
    void refuse(const std::string& name, const std::string& reason);

  private:
    [[nodiscard]] Result<std::shared_ptr<BroadcastGroup>> find(const std::string& name);

    Mutex mutex_{};
    std::shared_ptr<NcclTurn> nccl_turn_;
    // A group is null while it is being joined. A receiver shares the group while it is destroyed.
    std::map<std::string, std::shared_ptr<BroadcastGroup>> groups_ GUARDED_BY(mutex_){};
};

}  // namespace pitstop::tp_worker
