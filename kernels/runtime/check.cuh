// CUDA_CHECK wraps a CUDA call that must succeed. A failure leaves the context unusable, so the
// worker names the call and ends; the launcher ends the tree (house style, errors).
#pragma once

#include <cuda_runtime.h>

namespace pitstop::kernels {

// Ends the process with end_by_cuda_failure() (cuda_device.h) and "file:line: call: name of the
// error, its description".
[[noreturn]] void cuda_failed(const char* call, cudaError_t error, const char* file, int line);

}  // namespace pitstop::kernels

#define CUDA_CHECK(call)                                                            \
    do {                                                                            \
        if (const cudaError_t error_here = (call); error_here != cudaSuccess)       \
            ::pitstop::kernels::cuda_failed(#call, error_here, __FILE__, __LINE__); \
    } while (false)
