// The groups that this rank has joined, for broadcasts from a trainer (messages/groups.h).
//
// Thread:  any; a group is used by one thread at a time.
// Bounded: kGroupsMax.
#pragma once

#include "base/mutex.h"
#include "base/result.h"
#include "messages/groups.h"
#include "tp_worker/groups/tcp_stream.h"

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>

namespace pitstop::tp_worker {

// One rank's end of a group whose rank 0 is a trainer.
class BroadcastGroup {
  public:
    virtual ~BroadcastGroup() = default;
    // The trainer's next broadcast, which has exactly this size. After an error the group is of no
    // use.
    virtual Result<> receive(std::span<std::byte> out, const Patience& patience) = 0;
    // Tells the trainer, where there is a way to, that nothing more will be received.
    virtual void refuse(const std::string& reason) = 0;
    // Whether the trainer is known to be gone: nothing more will come.
    [[nodiscard]] virtual bool is_over() const = 0;
};

class Groups {
  public:
    static constexpr std::size_t kGroupsMax = 64;

    // `rank`: this worker's in the group. Waits as long as the backend's rendezvous does.
    // A group whose trainer died is in nobody's way: it is forgotten first.
    // Errors: kAlreadyExists, kResourceExhausted, kUnsupported, those of the rendezvous.
    Result<> init(const messages::GroupSpec& spec, std::int64_t rank, const Patience& patience);
    // kNotFound: there is none of this name.
    Result<> destroy(const std::string& name);

    // The next broadcast. An error ends the group: the trainer is told, and the next one may be
    // joined under the same name.
    Result<> receive(const std::string& name, std::span<std::byte> out, const Patience& patience);
    // What was announced cannot be taken: ends the group, as an error of receive() does.
    void refuse(const std::string& name, const std::string& reason);

  private:
    [[nodiscard]] std::shared_ptr<BroadcastGroup> find(const std::string& name);

    Mutex mutex_{};
    // Null while it is being joined. Shared with whoever receives while it is destroyed.
    std::map<std::string, std::shared_ptr<BroadcastGroup>> groups_ GUARDED_BY(mutex_){};
};

}  // namespace pitstop::tp_worker
