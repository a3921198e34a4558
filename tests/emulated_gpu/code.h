// The code of kernels, which takes memory of a GPU from its first use on: of a launch, unless
// cuFuncLoad() has brought it before. Nothing takes it away again before the process ends.
//
// Source: CUDA C++ Programming Guide, "Lazy Loading"; CUDA Driver API, cuFuncLoad.
// Thread: any.
#pragma once

#include <cstdint>

namespace pitstop::emulator {

enum class CodeOf : std::uint8_t { kProgram, kLibrary };

// `what` names a kernel, or what a library has of them. False: the GPU has not got the memory.
[[nodiscard]] bool load_code(int gpu, const void* what, CodeOf whose);

}  // namespace pitstop::emulator
