// Launches of kernels: what a GPU refuses, and the work that the others become.
#pragma once

#include "tests/emulated_gpu/blocks.h"

#include <cstddef>
#include <functional>

namespace pitstop::emulator {

struct KernelLaunch {
    Dim3 grid{};
    Dim3 block{};
    std::size_t shared_bytes = 0;  // dynamic
    void* stream = nullptr;        // a cudaStream_t
    bool is_cooperative = false;   // all blocks are there at once, or the launch is refused
    bool may_start_early = false;  // before the kernel before it has ended (overlap.h)
    const void* kernel = nullptr;  // names it
    std::function<void()> body{};  // one thread of it
};

// A cudaError_t. Source of the limits: CUDA C++ Programming Guide, "Technical specifications per
// compute capability".
[[nodiscard]] int launch_kernel(KernelLaunch launch);
// A kernel may have this much dynamic shared memory, where it asked for more than what all may:
// static and dynamic together fit a block. Source: CUDA Runtime API, "Execution Control",
// cudaFuncAttributeMaxDynamicSharedMemorySize.
[[nodiscard]] int raise_shared_memory(const void* kernel, int bytes);

}  // namespace pitstop::emulator
