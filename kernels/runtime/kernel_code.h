// The code of this program's kernels on the opened GPU (cuda_device.h). The driver brings a
// kernel's code to the GPU when it is first launched (lazy loading), which takes memory: if KV and
// a trainer had all of it, a launch during serving would fail. So all code is loaded when the GPU
// is opened, before its memory is divided.
//
// Source: CUDA C++ Programming Guide, "Lazy Loading"; CUDA Driver API, "cuFuncLoad".
#pragma once

#include "base/result.h"

namespace pitstop::kernels {

// Loads the code of all listed kernels (kernel_list.h) onto the calling thread's GPU. Returns the
// number of kernels. Errors: kResourceExhausted if the GPU has no memory for one, kUnavailable if
// it cannot run one; both name the kernel.
Result<int> load_kernels();

}  // namespace pitstop::kernels
