// CUDA's runtime: errors, devices, versions, and the driver's functions by name. Source: CUDA
// Runtime API, "Error Handling", "Device Management", "Driver Entry Point Access".
#include "tests/emulated_gpu/blocks.h"
#include "tests/emulated_gpu/calls.h"
#include "tests/emulated_gpu/contexts.h"
#include "tests/emulated_gpu/driver.h"
#include "tests/emulated_gpu/errors.h"
#include "tests/emulated_gpu/machine.h"
#include "tests/emulated_gpu/settings.h"

#include <array>
#include <cstdio>
#include <cstring>
#include <utility>

using namespace pitstop::emulator;

namespace {

constexpr int kVersion = 13000;  // CUDA 13.0
constexpr int kL2Bytes = 50 << 20;

}  // namespace

extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
    const ErrorEntry* const entry = error_entry(error);
    return entry != nullptr ? entry->name : "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
    const ErrorEntry* const entry = error_entry(error);
    return entry != nullptr ? entry->text : "unrecognized error code";
}

cudaError_t cudaGetLastError() {
    const int sticky = sticky_error();
    const cudaError_t last = std::exchange(last_error(), cudaSuccess);
    return sticky != 0 ? static_cast<cudaError_t>(sticky) : last;
}

cudaError_t cudaPeekAtLastError() {
    const int sticky = sticky_error();
    return sticky != 0 ? static_cast<cudaError_t>(sticky) : last_error();
}

cudaError_t cudaGetDeviceCount(int* num) {
    PITSTOP_ENTER_WITHOUT_CONTEXT();
    *num = settings().num_gpus;
    return told(*num == 0 ? cudaErrorNoDevice : cudaSuccess);
}

cudaError_t cudaGetDevice(int* device) {
    PITSTOP_ENTER_WITHOUT_CONTEXT();
    *device = current_gpu();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    PITSTOP_ENTER_WITHOUT_CONTEXT();
    if (device < 0 || device >= settings().num_gpus) return told(cudaErrorInvalidDevice);
    set_current_gpu(device);
    return told(open_context(device) ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    PITSTOP_ENTER_WITHOUT_CONTEXT();
    if (device < 0 || device >= settings().num_gpus) return told(cudaErrorInvalidDevice);
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "emulated GPU");
    const std::array<std::uint8_t, 16> uuid = uuid_of(device);
    std::memcpy(properties->uuid.bytes, uuid.data(), uuid.size());
    properties->totalGlobalMem = static_cast<std::size_t>(settings().memory_bytes);
    properties->sharedMemPerBlockOptin = kSharedBytesMax;
    properties->major = 9;
    properties->minor = 0;
    properties->multiProcessorCount = kMultiprocessors;
    properties->l2CacheSize = kL2Bytes;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
    *version = kVersion;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = kVersion;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
    PITSTOP_ENTER();
    *lowest = 0;
    *highest = -5;
    return cudaSuccess;
}

// Finding a function uses no memory yet: the driver may load its code later.
cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
    PITSTOP_ENTER();
    *function = reinterpret_cast<cudaFunction_t>(const_cast<void*>(symbol));
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(
    const char* symbol,
    void** function,
    unsigned version,
    unsigned long long,
    cudaDriverEntryPointQueryResult* status
) {
    PITSTOP_ENTER_WITHOUT_CONTEXT();
    *function = driver_function(symbol);
    *status = *function == nullptr ? cudaDriverEntryPointSymbolNotFound
              : version > kVersion ? cudaDriverEntryPointVersionNotSufficent
                                   : cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

}  // extern "C"
