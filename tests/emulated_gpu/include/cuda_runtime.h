// Replaces CUDA's header of the same name when kernels/ is compiled for the emulated GPU: only the
// used part of the language and of the runtime.
#pragma once

#include "tests/emulated_gpu/launches.h"

#include <cuda_language.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <tuple>
#include <utility>

enum cudaLaunchAttributeID {
    cudaLaunchAttributeCooperative = 2,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6
};
union cudaLaunchAttributeValue {
    int cooperative;
    int programmaticStreamSerializationAllowed;
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id{};
    cudaLaunchAttributeValue val{};
};
struct cudaLaunchConfig_t {
    dim3 gridDim{};
    dim3 blockDim{};
    std::size_t dynamicSmemBytes = 0;
    cudaStream_t stream = nullptr;
    cudaLaunchAttribute* attrs = nullptr;
    unsigned numAttrs = 0;
};

// Reads any attribute as a flag: all values that are used here are ints at the same address.
inline bool has_attribute(const cudaLaunchConfig_t& config, cudaLaunchAttributeID id) {
    for (unsigned i = 0; i < config.numAttrs; ++i) {
        if (config.attrs[i].id == id) return config.attrs[i].val.cooperative != 0;
    }
    return false;
}

// The arguments are copied at the call, as the real launch does.
template <class... Params, class... Args>
cudaError_t cudaLaunchKernelEx(
    const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args&&... args
) {
    auto copied = std::make_shared<std::tuple<Params...>>(static_cast<Params>(args)...);
    return static_cast<cudaError_t>(pitstop::emulator::launch_kernel(
        {.grid = config->gridDim,
         .block = config->blockDim,
         .shared_bytes = config->dynamicSmemBytes,
         .stream = config->stream,
         .is_cooperative = has_attribute(*config, cudaLaunchAttributeCooperative),
         .may_start_early =
             has_attribute(*config, cudaLaunchAttributeProgrammaticStreamSerialization),
         .kernel = reinterpret_cast<const void*>(kernel),
         .body = [kernel, copied] { std::apply(kernel, *copied); }}
    ));
}
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int bytes) {
    return static_cast<cudaError_t>(
        pitstop::emulator::raise_shared_memory(reinterpret_cast<const void*>(kernel), bytes)
    );
}
