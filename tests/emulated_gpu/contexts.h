// What a process's context takes of a GPU: from cudaSetDevice() on, or from the first call that
// needs one, until the process ends.
//
// Source: CUDA Runtime API, cudaSetDevice ("initializes the runtime state"), "Initialization";
// CUDA Driver API, cuDevicePrimaryCtxRetain.
// Thread: any.
#pragma once

namespace pitstop::emulator {

// False: the GPU has not got the memory.
[[nodiscard]] bool open_context(int gpu);

}  // namespace pitstop::emulator
