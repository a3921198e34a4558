// Storages of torch's in a peer's GPU memory, as one message hands them over: each allocation is
// opened once, however many tensors lie in it, and read where it is.
//
// What the sender lends is counted in its shared memory, a reference for each handle; they are
// given back at the end of the message, when nothing reads the memory any more and it is closed:
// from then on the sender may free it. So nothing is kept open for the next message: an exporter
// must not free what an importer has open.
//
// Owns:   the mappings, and the references.
// Source: torch/csrc/CudaIPCTypes.h, torch/csrc/StorageSharing.cpp; CUDA Runtime API,
//         cudaIpcOpenMemHandle.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "kernels/device_import.h"

#include <atomic>
#include <cstdint>
#include <map>
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
    CudaStorages() = default;
    ~CudaStorages();
    CudaStorages(const CudaStorages&) = delete;
    CudaStorages& operator=(const CudaStorages&) = delete;

    // The storage's bytes, in the opened GPU's memory, once the sender's GPU is done with them.
    // From here on its reference is this one's, whatever comes of it.
    // Errors: kInvalidArgument (another GPU's, sizes beyond the allocation), kUnavailable (nothing
    // is opened by it), kDeadlineExceeded, kAborted (the stage was dropped).
    Result<std::span<const std::byte>> open(
        const CudaHandle& handle, const std::string& device_uuid, const CudaWait& wait
    );

    // Its reference is this one's, and nothing is opened.
    void hold(const CudaHandle& handle);

  private:
    std::set<std::pair<std::string, std::int64_t>> references_{};  // counter and index
    std::map<std::string, kernels::DeviceImport> imports_{};       // by the handle's bytes
};

}  // namespace pitstop::tp_worker
