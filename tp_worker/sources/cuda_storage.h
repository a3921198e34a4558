// Opens storages of torch's in a peer's GPU memory, as one message hands them over: each allocation
// is read where it is, through the update's mappings (cuda_mappings.h).
//
// What the sender lends is counted in its shared memory, a reference for each handle; they are
// given back at the end of the message, when nothing reads the memory any more: from then on the
// sender may write to it or free it.
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

// A sender's work on its GPU may take so long until what it sent is there.
struct CudaWait {
    TimePoint until = TimePoint::max();
    const std::atomic<bool>& is_dropped;
};

class CudaStorages {
  public:
    // With null nothing is opened here, on a CPU; references are given back all the same.
    explicit CudaStorages(CudaMappings* mappings) : mappings_(mappings) {
        if (mappings_ != nullptr) mappings_->begin_message();
    }
    // REQUIRES: nothing enqueued reads a storage any more.
    ~CudaStorages();
    CudaStorages(const CudaStorages&) = delete;
    CudaStorages& operator=(const CudaStorages&) = delete;

    // Returns the storage's bytes on the opened GPU, once the sender's GPU is done with them. From
    // here on its reference is this one's, whatever comes of it. REQUIRES: there are mappings.
    // Errors: kInvalidArgument (another GPU's, sizes beyond the allocation), kUnavailable (nothing
    // is opened by it), kDeadlineExceeded, kAborted (the stage was dropped).
    Result<std::span<const std::byte>> open(
        const CudaHandle& handle, const std::string& device_uuid, const CudaWait& wait
    );

    // Takes over its reference, and opens nothing.
    void hold(const CudaHandle& handle);

  private:
    CudaMappings* mappings_ = nullptr;
    std::set<std::pair<std::string, std::int64_t>> references_{};  // counter and index
};

}  // namespace pitstop::tp_worker
