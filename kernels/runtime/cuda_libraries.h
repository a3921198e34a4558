// Finds NVIDIA's libraries, which are opened at run time, in the usual places.
//
//   1. the executable's directory and its ../lib     for a bundle
//   2. where the loader looks                        rpath, LD_LIBRARY_PATH, ld.so.cache
//   3. lib64 and lib of CUDA_HOME and CUDA_PATH
//   4. /usr/local/cuda/lib64
//   5. Python environments: the packages nvidia-*, in any site-packages of the python3 that the
//      PATH finds first; nothing there is run
#pragma once

#include <dlfcn.h>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::kernels {

// Returns the paths to try, in that order: files that need not exist, and just `name` for the
// loader. `packages` are folders of site-packages, such as "nvidia/cublas/lib".
[[nodiscard]] std::vector<std::string> library_places(
    std::string_view name, std::span<const std::string_view> packages
);

// Gets a function of an opened library by its name. Returns false, and null in `function`, if the
// library is too old or too new to have it.
template <class Function>
[[nodiscard]] bool find_function(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    return function != nullptr;
}

// Finds NCCL where ld.so or a Python environment has it; empty if none is found. See nccl.h.
[[nodiscard]] std::string find_nccl();

}  // namespace pitstop::kernels
