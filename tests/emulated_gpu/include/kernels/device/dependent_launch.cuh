// Replaces kernels/device/dependent_launch.cuh in the emulator (overlap.h).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace pitstop::kernels {

inline void let_next_kernel_start() { emulator::let_next_kernel_start(); }
// The call loses the block's static shared memory: other blocks run meanwhile.
inline void wait_for_kernel_before() { emulator::wait_for_kernel_before(); }

}  // namespace pitstop::kernels
