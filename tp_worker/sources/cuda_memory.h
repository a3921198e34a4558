// Opens memory of a PyTorch peer on a GPU, from the storage handle in its pickles.
//
//   64 bytes                  a cudaIpcMemHandle_t (before PyTorch 2.5)
//   version 'c' 64 bytes      the same, of versions 1 to 3
//   version 'e' run           a run of chunks of an expandable segment, of versions 1 to 3: the
//                             sender's process, the chunks' size and number, and for each the
//                             number of a file descriptor in that process, or a fabric handle
//
// Fabric handles, which need NVIDIA's IMEX service, are recognized and refused by name.
//
// Source: c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.5 to 2.15: shareIpcHandle,
//         ExpandableSegment::share.
#pragma once

#include "base/result.h"
#include "kernels/runtime/device_import.h"

#include <cstdint>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace pitstop::tp_worker {

// A run of chunks of an expandable segment.
struct SegmentRun {
    pid_t pid = 0;
    std::int64_t chunk_bytes = 0;
    std::vector<int> fds{};  // the descriptors' numbers in that process
};

[[nodiscard]] bool is_segment_run(std::string_view handle);

// REQUIRES: is_segment_run(handle). Errors: kUnsupported (another version, fabric handles),
// kInvalidArgument (invalid sizes).
Result<SegmentRun> read_segment_run(std::string_view handle);

// `owner` is the process of the reference counters that came with the handle. Errors: those of
// kernels::DeviceImport and PeerDescriptors; kUnsupported for an unknown handle; kInvalidArgument
// for a handle of another process.
Result<kernels::DeviceImport> open_cuda_memory(std::string_view handle, pid_t owner);

}  // namespace pitstop::tp_worker
