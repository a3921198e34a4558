// Enqueues a kernel on a Stream. Checks the launch; never synchronizes.
#pragma once

#include "kernels/runtime/check.cuh"
#include "kernels/runtime/kernel_list.h"
#include "kernels/runtime/stream.h"

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>
#include <utility>

namespace pitstop::kernels {

[[nodiscard]] inline cudaStream_t cuda_stream(Stream stream) {
    CHECK(stream.handle != nullptr);  // the default stream would be ordered against every other
    return static_cast<cudaStream_t>(stream.handle);
}

struct Launch {
    dim3 grid{};
    dim3 block{};
    std::int64_t shared_bytes = 0;  // dynamic
    Stream stream{};
    // All blocks run at once, so that they may wait for each other, and for those of other GPUs
    // (CUDA C++ Programming Guide, "Cooperative Groups", grid synchronization).
    bool is_cooperative = false;
    // In a graph, the kernel may begin before the previous one has ended. REQUIRES: it waits as in
    // dependent_launch.cuh.
    bool starts_early = false;
};

// Returns whether a kernel that is enqueued now may begin before the previous one has ended: as a
// node of a graph, on GPUs that support it. Launches of a stream never do: early starts would cost
// the host more than they gain, and --no-graphs must not have them.
[[nodiscard]] bool may_start_early(Stream stream);

// The kernel's name, for the error of a failed launch: the compiler puts it into this function's
// name.
template <auto kKernel>
const char* launch_of() {
    return __PRETTY_FUNCTION__;
}

// Lists a kernel that launch() is compiled for, so that its code is on the GPU before it is needed.
template <auto kKernel>
struct KnownKernel {
    static const bool is;
};
template <auto kKernel>
const bool KnownKernel<kKernel>::is =
    list_kernel(reinterpret_cast<const void*>(kKernel), launch_of<kKernel>());

template <auto kKernel, class... Args>
void launch(const Launch& where, Args&&... args) {
    (void)KnownKernel<kKernel>::is;
    if (where.grid.x == 0 || where.grid.y == 0 || where.grid.z == 0) return;
    if (where.shared_bytes > 0) {
        // The default 48 KiB of a block cover static and dynamic shared memory together (CUDA
        // guide, "compute capabilities"), so a kernel with both requests more. One request is
        // enough: the attribute persists, and all launches of a kernel need the same size.
        static const cudaError_t raised = cudaFuncSetAttribute(
            kKernel,
            cudaFuncAttributeMaxDynamicSharedMemorySize,
            static_cast<int>(where.shared_bytes)
        );
        if (raised != cudaSuccess) cuda_failed(launch_of<kKernel>(), raised, __FILE__, __LINE__);
    }
    cudaLaunchConfig_t config{};
    config.gridDim = where.grid;
    config.blockDim = where.block;
    config.dynamicSmemBytes = static_cast<std::size_t>(where.shared_bytes);
    config.stream = cuda_stream(where.stream);
    cudaLaunchAttribute attributes[2]{};
    config.attrs = attributes;
    if (where.is_cooperative) {
        cudaLaunchAttribute& cooperative = attributes[config.numAttrs++];
        cooperative.id = cudaLaunchAttributeCooperative;
        cooperative.val.cooperative = 1;
    }
    if (where.starts_early && may_start_early(where.stream)) {
        cudaLaunchAttribute& early = attributes[config.numAttrs++];
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
    }
    const cudaError_t error = cudaLaunchKernelEx(&config, kKernel, std::forward<Args>(args)...);
    if (error != cudaSuccess) cuda_failed(launch_of<kKernel>(), error, __FILE__, __LINE__);
}

// Narrows a number for a grid or a kernel parameter, visibly.
template <class To, class From>
[[nodiscard]] To narrow(From value) {
    CHECK(std::in_range<To>(value));
    return static_cast<To>(value);
}

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t d) {
    return (n + d - 1) / d;
}

// Returns the blocks of a launch whose blocks process tiles in turn: no more than `blocks_max`, if
// that is not 0.
[[nodiscard]] inline unsigned capped_blocks(std::int64_t num_tiles, int blocks_max) {
    CHECK(blocks_max >= 0);
    return narrow<unsigned>(blocks_max == 0 || blocks_max > num_tiles ? num_tiles : blocks_max);
}

[[nodiscard]] inline bool is_aligned(const void* pointer, std::int64_t bytes) {
    return reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(bytes) == 0;
}

}  // namespace pitstop::kernels
