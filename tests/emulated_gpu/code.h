// The code of kernels, which uses memory of a GPU from the kernel's first launch or cuFuncLoad()
// on. The memory is not freed before the process ends.
//
// Source: CUDA C++ Programming Guide, "Lazy Loading"; CUDA Driver API, cuFuncLoad.
// Thread: any.
#pragma once

#include <cstdint>

namespace pitstop::emulator {

enum class CodeOf : std::uint8_t { kProgram, kLibrary };

// `what` identifies a kernel of the program or of a library. False if the GPU lacks the memory.
[[nodiscard]] bool load_code(int gpu, const void* what, CodeOf whose);

}  // namespace pitstop::emulator
