// The worker's side of pitstop's own push protocol (messages/push.h).
#pragma once

#include "kernels/runtime/device_import.h"
#include "messages/frames.h"
#include "messages/push.h"
#include "tp_worker/sources/reply_socket.h"
#include "tp_worker/sources/shared_memory.h"
#include "tp_worker/sources/source.h"

#include <optional>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

class PushSession {
  public:
    PushSession(const SourceArgs& args, ReplySocket& socket) : args_(args), socket_(socket) {}

    // Receives everything from the pusher's first message to its last. Errors: ipc_source.h.
    Result<> run(std::vector<std::string> first);
    // Answers a message with the reason why nothing is staged.
    void refuse(const Error& why);

  private:
    enum class Next { kGoOn, kOver };
    Result<> converse(std::vector<std::string> frames);
    Result<Next> handle_message(const std::vector<std::string>& frames);
    Result<Next> handle_first(const messages::Frames& frames);
    Result<Next> handle_open(const messages::Frames& frames);
    Result<> open(const messages::PushOpen& message);
    Result<> close(const messages::PushEnd& message);
    // Opens the allocations that no earlier bucket has named: mapping a whole model takes
    // milliseconds. The allocations stay open until the push ends (cuda_mappings.h). Errors:
    // kUnsupported (a worker on the CPU), kInvalidArgument (another GPU's), kUnavailable (a handle
    // cannot be opened).
    [[nodiscard]] Result<std::vector<const kernels::DeviceImport*>> open_allocations(
        const messages::PushBucket& message
    ) const;
    Result<> take_bucket(const messages::PushBucket& message);
    Result<> stage_bucket(const messages::PushBucket& message);
    Result<> stage_shard(const messages::PushShard& message);
    [[nodiscard]] messages::PushLayout layout() const;

    const SourceArgs& args_;
    ReplySocket& socket_;
    std::optional<SharedMapping> memory_{};
    std::optional<SharedFd> file_{};  // of memory that another process may truncate
    bool is_open_ = false;
};

}  // namespace pitstop::tp_worker
