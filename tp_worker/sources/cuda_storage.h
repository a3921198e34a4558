// Opens torch's storages in a peer's GPU memory, as one message passes them: each allocation is
// read in place, through the update's mappings (cuda_mappings.h).
//
// The sender counts what it lends in its shared memory, one reference per handle. The references
// are given back at the end of the message, when nothing reads the memory any more. Then the sender
// may write to the memory or free it.
//
// Owns:   the references.
// Source: torch/csrc/CudaIPCTypes.h, torch/csrc/StorageSharing.cpp.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "tp_worker/sources/cuda_mappings.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>

namespace pitstop::tp_worker {

struct CudaHandle;

// How long a sender's work on its GPU may take until its data is ready.
struct CudaWait {
    TimePoint until = TimePoint::max();
    const std::atomic<bool>& is_dropped;
};

class CudaStorages {
  public:
    // null on a CPU: then no storage can be opened, but references are still given back.
    explicit CudaStorages(CudaMappings* mappings) : mappings_(mappings) {
        if (mappings_ != nullptr) mappings_->begin_message();
    }
    // REQUIRES: no enqueued work reads a storage.
    ~CudaStorages();
    CudaStorages(const CudaStorages&) = delete;
    CudaStorages& operator=(const CudaStorages&) = delete;

    // Returns the storage's bytes on the opened GPU, once the sender's GPU is done with them. Takes
    // over the handle's reference in any case. REQUIRES: there are mappings.
    // Errors: kInvalidArgument (another GPU's, sizes beyond the allocation), kUnavailable (it
    // cannot be opened), kDeadlineExceeded, kAborted (the stage was dropped).
    Result<std::span<const std::byte>> open(
        const CudaHandle& handle, const std::string& device_uuid, const CudaWait& wait
    );

    // Takes over the handle's reference without opening the storage.
    void hold(const CudaHandle& handle);

  private:
    CudaMappings* mappings_ = nullptr;
    std::set<std::pair<std::string, std::int64_t>> references_{};  // counter and index
};

}  // namespace pitstop::tp_worker
