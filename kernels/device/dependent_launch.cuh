// With programmatic dependent launch, a kernel of a graph begins while the one before it ends,
// and prefetches weights until that one is done. A kernel launched with Launch::starts_early
// calls wait_for_kernel_before() in every thread before it reads or writes anything that any
// earlier kernel reads or writes. After that call it is ordered after all earlier kernels,
// because each of them has made the same call. Before that it may prefetch weights to L2, which
// nothing in flight changes.
//
// On GPUs before compute capability 9.0, and for other launches, these functions do nothing.
// Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"; PTX ISA
// 8.x, "griddepcontrol", "cp.async.bulk.prefetch".
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace pitstop::kernels {

// The next kernel's blocks may begin where there is room, once every block of this
// kernel has begun.
__device__ inline void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when the kernel before this one has ended and all its writes are visible.
__device__ inline void wait_for_kernel_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Both are multiples of 16; the bytes exist. No thread waits for the prefetch.
__device__ inline void prefetch_to_l2(const void* from, std::uint32_t num_bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)),
        "r"(num_bytes)
    );
#endif
}

}  // namespace pitstop::kernels
