// With programmatic dependent launch, a kernel of a graph begins while the one before it ends, so
// that its launch takes no time of its own. A kernel launched with Launch::starts_early calls
// wait_for_kernel_before() in every thread before it reads or writes anything that the kernels
// before it read or write. After that call it is ordered after all earlier kernels, because each of
// them has made the same call, or did not start early.
//
// Weights are not prefetched to L2 in that time: prefetching made layers of qwen3-8b 6 % slower,
// with early starts and without (H200; cp.async.bulk.prefetch.L2 of the first 2 KiB of each weight
// row).
//
// On GPUs before compute capability 9.0, and for other launches, these functions do nothing.
// Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"; PTX ISA
// 8.x, "griddepcontrol".
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

}  // namespace pitstop::kernels
