// The block's dynamic shared memory, aligned to 1024 bytes: the period of a 128-byte swizzle.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace pitstop::kernels {

__device__ inline std::byte* dynamic_shared_memory() {
    extern __shared__ __align__(1024) std::byte dynamic_shared_memory_bytes[];
    return dynamic_shared_memory_bytes;
}

}  // namespace pitstop::kernels
