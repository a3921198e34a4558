// Mappings of senders' GPU memory for one update: an allocation is opened when it is first named,
// and reused by every later tensor and message of the update in it.
//
// A mapping is identified by the handle's bytes and by the name of the sender's reference counters,
// which no other process has: so a mapping of a process that has ended is never used for a new
// process with the same number. The device is always this worker's. Mappings are closed as follows:
//   - all, when the update has its bytes or is abandoned: the sender's memory returns to its driver
//     then, if the sender has freed it meanwhile;
//   - those of a sender that has ended, when the next message begins;
//   - those of a pusher, when its push ends: the pusher may then free the memory, and a later push
//     of the session may have other memory under the same handle;
//   - the least recently used, when there are kMax; and those that this message does not use, when
//     an allocation cannot be opened: a stale one may be at the sender's new address;
//   - runs of expandable segments, with their message: their handles are numbers of file
//     descriptors, which may mean other memory in the next message.
//
// Owns:    the mappings.
// Thread:  one at a time.
// Bounded: kMax mappings besides those of the current message.
#pragma once

#include "base/result.h"
#include "kernels/runtime/device_import.h"
#include "tp_worker/sources/peer_descriptors.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <sys/types.h>
#include <utility>

namespace pitstop::tp_worker {

class CudaMappings {
  public:
    // Opening an allocation takes 0.1 to 1 ms (UNMEASURED here); a model has some hundreds of them.
    static constexpr std::size_t kMax = 512;

    struct Sender {
        pid_t pid = 0;           // 0: a pusher, which keeps the memory until end_push()
        std::string counters{};  // the name of the sender's shared memory with its counters
    };

    // Begins a message, which ends with end_message(): found mappings stay open until then.
    void begin_message();
    // Finds the allocation of `handle` (cuda_memory.h). Errors: open_cuda_memory()'s, with the
    // state of the sender.
    Result<const kernels::DeviceImport*> find(const std::string& handle, const Sender& sender);
    // REQUIRES: nothing reads the found mappings any more.
    void end_message();
    // Closes the mappings of a pusher's memory. REQUIRES: no message is read.
    void end_push();

    // Closes all. REQUIRES: no message is being read.
    void clear() { entries_.clear(); }

    [[nodiscard]] std::int64_t num_opened() const { return num_opened_; }
    [[nodiscard]] std::int64_t num_found_open() const { return num_found_open_; }
    [[nodiscard]] std::size_t num_open() const { return entries_.size(); }

  private:
    struct Entry {
        kernels::DeviceImport import{};
        // empty: not visible from here, so the mapping is not kept
        std::optional<PeerDescriptors> sender{};
        std::int64_t last_message = 0;
        bool is_kept = false;  // stays open after its message
        bool is_pushers = false;
    };

    Result<kernels::DeviceImport> open(const std::string& handle, pid_t pid);
    void close_where(const std::function<bool(const Entry&)>& is_over);

    std::map<std::pair<std::string, std::string>, Entry> entries_{};  // by handle and counters
    std::int64_t message_ = 0;
    std::int64_t num_opened_ = 0;
    std::int64_t num_found_open_ = 0;
};

}  // namespace pitstop::tp_worker
