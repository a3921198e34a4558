// Gives the block's dynamic shared memory. It is 1024 bytes aligned: what a 128-byte swizzle
// repeats over.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace pitstop::kernels {

__device__ inline std::byte* dynamic_shared_memory() {
    extern __shared__ __align__(1024) std::byte dynamic_shared_memory_bytes[];
    return dynamic_shared_memory_bytes;
}

}  // namespace pitstop::kernels
