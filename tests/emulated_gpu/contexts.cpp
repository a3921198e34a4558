// Emulates the part of the driver's contexts that a program needs for a memory handle, and no more.
// A thread has no context until it pushes one, even if the runtime's calls have made one current.
#include "tests/emulated_gpu/contexts.h"

#include "tests/emulated_gpu/calls.h"
#include "tests/emulated_gpu/memory.h"
#include "tests/emulated_gpu/settings.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace pitstop::emulator {
namespace {

// A primary context's handle is its GPU's number, from 1 on.
thread_local std::vector<CUcontext> contexts_of_thread;

CUcontext primary_context(CUdevice device) {
    return reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device) + 1);
}

bool is_device(CUdevice device) { return device >= 0 && device < settings().num_gpus; }

constexpr std::size_t kGpusMax = 64;  // as in settings.cpp

struct Opened {
    std::mutex mutex{};
    std::array<std::atomic<bool>, kGpusMax> is_open{};
    std::array<std::shared_ptr<Physical>, kGpusMax> memory{};
};
Opened& opened() {
    static Opened* const instance = new Opened;
    return *instance;
}

}  // namespace

bool open_context(int gpu) {
    if (settings().context_bytes == 0 || !is_device(gpu)) return true;
    Opened& all = opened();
    const auto at = static_cast<std::size_t>(gpu);
    if (all.is_open[at]) return true;
    const std::scoped_lock lock(all.mutex);
    if (all.is_open[at]) return true;
    const auto bytes = static_cast<std::size_t>(settings().context_bytes);
    all.memory[at] = create_own_memory(gpu, bytes, OwnMemory::kContext);
    all.is_open[at] = all.memory[at] != nullptr;
    return all.is_open[at];
}

}  // namespace pitstop::emulator

using namespace pitstop::emulator;

extern "C" {

CUresult cuInit(unsigned flags) { return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    if (!is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!open_context(device)) return CUDA_ERROR_OUT_OF_MEMORY;
    *context = primary_context(device);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    contexts_of_thread.push_back(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
    if (contexts_of_thread.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *context = contexts_of_thread.back();
    contexts_of_thread.pop_back();
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* begin, std::size_t* bytes, CUdeviceptr address) {
    return cuMemGetAddressRange(begin, bytes, address);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr begin) {
    if (contexts_of_thread.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    cudaIpcMemHandle_t made{};
    const cudaError_t error = cudaIpcGetMemHandle(&made, reinterpret_cast<void*>(begin));
    if (error != cudaSuccess) return static_cast<CUresult>(error);
    std::memcpy(handle->reserved, made.reserved, sizeof handle->reserved);
    return CUDA_SUCCESS;
}

}  // extern "C"
