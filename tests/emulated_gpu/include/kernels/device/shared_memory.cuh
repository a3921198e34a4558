// Replaces kernels/device/shared_memory.cuh in the emulator.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace pitstop::kernels {

inline std::byte* dynamic_shared_memory() { return emulator::dynamic_shared_memory(); }

}  // namespace pitstop::kernels
