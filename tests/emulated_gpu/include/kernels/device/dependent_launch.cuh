// Stands in for kernels/device/dependent_launch.cuh in the emulator (overlap.h).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace pitstop::kernels {

inline void let_next_kernel_start() { emulator::let_next_kernel_start(); }
inline void wait_for_kernel_before() { emulator::wait_for_kernel_before(); }
// Brings nothing into a kernel: there is no cache here.
inline void prefetch_to_l2(const void* from, std::uint32_t num_bytes) {
    emulator::check_aligned(from, 16);
    emulator::check_aligned(reinterpret_cast<const void*>(std::uintptr_t{num_bytes}), 16);
}

}  // namespace pitstop::kernels
