// Launches of kernels: those that a GPU refuses, and the work of the others.
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
    bool is_cooperative = false;   // all blocks run at once, or the launch is refused
    bool may_start_early = false;  // may begin before the previous kernel has ended (overlap.h)
    const void* kernel = nullptr;  // names the kernel
    std::function<void()> body{};  // what each thread runs
};

// Returns a cudaError_t. Source of the limits: CUDA C++ Programming Guide, "Technical
// specifications per compute capability".
[[nodiscard]] int launch_kernel(KernelLaunch launch);
// Sets the most dynamic shared memory that launches of the kernel may use: static and dynamic
// memory together must fit a block. Source: CUDA Runtime API, "Execution Control",
// cudaFuncAttributeMaxDynamicSharedMemorySize.
[[nodiscard]] int raise_shared_memory(const void* kernel, int bytes);

}  // namespace pitstop::emulator
