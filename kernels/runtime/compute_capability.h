// The compute capability of the opened GPU (cuda_device.h), for CUDA sources too: this header
// includes nothing that nvcc does not compile.
#pragma once

namespace pitstop::kernels {

inline constexpr int kHopper = 90;  // the capability that wgmma's machine code is for

// Returns 10 * major + minor of the opened device; 0 if none is open.
[[nodiscard]] int compute_capability();

}  // namespace pitstop::kernels
