// Opens the GPU of this process. A worker has one, and opens it at start-up, before it uses
// cuda_ops().
//
// In a build without CUDA every call returns an error; no caller needs an #ifdef.
#pragma once

#include "base/result.h"
#include "kernels/runtime/compute_capability.h"

#include <cstdint>
#include <string>

namespace pitstop::kernels {

struct CudaDeviceInfo {
    int index = 0;
    std::string name{};
    std::string uuid{};  // "GPU-5b3f...", as nvidia-smi prints it
    int compute_major = 0;
    int compute_minor = 0;
    int num_multiprocessors = 0;
    std::int64_t memory_bytes = 0;
    std::int64_t l2_bytes = 0;
    std::int64_t shared_bytes_per_block_max = 0;
    int driver_version = 0;  // 1000 * major + 10 * minor: the CUDA version that the driver supports
    int runtime_version = 0;  // of the linked runtime
    std::string cublas_lt_path{};
    std::int64_t cublas_lt_version = 0;
    std::string nccl_path{};  // empty if none was found
};

struct DeviceMemoryInfo {
    std::int64_t free_bytes = 0;
    std::int64_t total_bytes = 0;
};

// Returns the number of GPUs that the driver shows. kUnsupported: this build has no CUDA.
// kUnavailable: no driver, or one too old for the runtime; the message says which.
[[nodiscard]] Result<int> num_cuda_devices();

// Opens GPU `index` for this process, loads all kernels onto it, and finds cuBLASLt. Once per
// process; later calls with the same index return the same. kNotFound: no such GPU, no cuBLASLt.
// kUnsupported: older than compute capability 8.0. kUnavailable: the driver lets no process use it.
// kResourceExhausted: other processes have it, or all its memory.
[[nodiscard]] Result<CudaDeviceInfo> open_cuda_device(int index);

// Returns what open_cuda_device() returned. REQUIRES: one is open.
[[nodiscard]] CudaDeviceInfo opened_cuda_device();

// Returns whether kernels on the opened GPU may access the memory of GPU `index`; always true for
// its own.
[[nodiscard]] bool has_peer_access(int index);

// Ends the process after a CUDA or cuBLAS call that must succeed has failed: prints `line`, which
// names the call, calls the handler with it, and aborts if the handler returns. A worker's handler
// reports to the launcher and ends the process, on the thread that made the call.
[[noreturn]] void end_by_cuda_failure(const std::string& line);
using CudaFailureHandler = void (*)(const std::string& line);
void set_cuda_failure_handler(CudaFailureHandler handler);

// Makes the opened GPU the calling thread's current one, before it creates memory, streams, events.
void enter_cuda_device();

// Returns the opened device's number of multiprocessors; 0 if no device is open.
[[nodiscard]] int num_multiprocessors();

// Returns the opened device's memory as the driver sees it, including other processes' use.
[[nodiscard]] DeviceMemoryInfo device_memory_info();

}  // namespace pitstop::kernels
