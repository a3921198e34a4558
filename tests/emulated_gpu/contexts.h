// The memory of a GPU that a process's context uses: from cudaSetDevice(), or the first call that
// needs a context, until the process ends.
//
// Source: CUDA Runtime API, cudaSetDevice ("initializes the runtime state"), "Initialization";
// CUDA Driver API, cuDevicePrimaryCtxRetain.
// Thread: any.
#pragma once

namespace pitstop::emulator {

// False if the GPU lacks the memory.
[[nodiscard]] bool open_context(int gpu);

}  // namespace pitstop::emulator
