#include "tests/emulated_gpu/driver.h"

#include "tests/emulated_gpu/calls.h"
#include "tests/emulated_gpu/code.h"
#include "tests/emulated_gpu/faults.h"
#include "tests/emulated_gpu/machine.h"
#include "tests/emulated_gpu/memory.h"
#include "tests/emulated_gpu/settings.h"

#include <cuda.h>

#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

namespace pitstop::emulator {
namespace {

struct Handle {
    std::shared_ptr<Physical> physical{};
    bool is_exportable = false;
};
struct Handles {
    std::mutex mutex{};
    std::map<CUmemGenericAllocationHandle, Handle> by_number{};
    CUmemGenericAllocationHandle last = 0;

    CUmemGenericAllocationHandle add(Handle handle) {
        const std::scoped_lock lock(mutex);
        by_number[++last] = std::move(handle);
        return last;
    }
    Handle find(CUmemGenericAllocationHandle number) {
        const std::scoped_lock lock(mutex);
        const auto found = by_number.find(number);
        return found == by_number.end() ? Handle{} : found->second;
    }
};
Handles& handles() {
    static Handles* const instance = new Handles;
    return *instance;
}

std::byte* pointer_to(CUdeviceptr address) { return reinterpret_cast<std::byte*>(address); }
bool is_granular(std::size_t bytes) { return bytes != 0 && bytes % kGranularity == 0; }

CUresult enter(const char* function) { return static_cast<CUresult>(enter_unsafe_call(function)); }

}  // namespace

void* driver_function(const char* symbol) {
    const std::pair<std::string_view, void*> functions[] = {
        {"cuGetErrorName", reinterpret_cast<void*>(&cuGetErrorName)},
        {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(&cuMemGetAllocationGranularity)},
        {"cuMemAddressReserve", reinterpret_cast<void*>(&cuMemAddressReserve)},
        {"cuMemAddressFree", reinterpret_cast<void*>(&cuMemAddressFree)},
        {"cuMemGetAddressRange", reinterpret_cast<void*>(&cuMemGetAddressRange)},
        {"cuMemCreate", reinterpret_cast<void*>(&cuMemCreate)},
        {"cuMemRelease", reinterpret_cast<void*>(&cuMemRelease)},
        {"cuMemMap", reinterpret_cast<void*>(&cuMemMap)},
        {"cuMemUnmap", reinterpret_cast<void*>(&cuMemUnmap)},
        {"cuMemSetAccess", reinterpret_cast<void*>(&cuMemSetAccess)},
        {"cuMemExportToShareableHandle", reinterpret_cast<void*>(&cuMemExportToShareableHandle)},
        {"cuMemImportFromShareableHandle",
         reinterpret_cast<void*>(&cuMemImportFromShareableHandle)},
        {"cuFuncLoad", reinterpret_cast<void*>(&cuFuncLoad)},
    };
    for (const auto& [name, function] : functions) {
        if (name == symbol) return function;
    }
    return nullptr;
}

}  // namespace pitstop::emulator

using namespace pitstop::emulator;

#define PITSTOP_ENTER_DRIVER() \
    if (const CUresult entered = enter(__func__); entered != CUDA_SUCCESS) return entered

extern "C" {

CUresult cuGetErrorName(CUresult error, const char** name) {
    switch (error) {
        case CUDA_SUCCESS:
            *name = "CUDA_SUCCESS";
            return CUDA_SUCCESS;
        case CUDA_ERROR_INVALID_VALUE:
            *name = "CUDA_ERROR_INVALID_VALUE";
            return CUDA_SUCCESS;
        case CUDA_ERROR_OUT_OF_MEMORY:
            *name = "CUDA_ERROR_OUT_OF_MEMORY";
            return CUDA_SUCCESS;
        case CUDA_ERROR_INVALID_DEVICE:
            *name = "CUDA_ERROR_INVALID_DEVICE";
            return CUDA_SUCCESS;
        case CUDA_ERROR_INVALID_CONTEXT:
            *name = "CUDA_ERROR_INVALID_CONTEXT";
            return CUDA_SUCCESS;
        case CUDA_ERROR_UNKNOWN:
            *name = "CUDA_ERROR_UNKNOWN";
            return CUDA_SUCCESS;
        case CUDA_ERROR_NOT_SUPPORTED:
            *name = "CUDA_ERROR_NOT_SUPPORTED";
            return CUDA_SUCCESS;
    }
    *name = nullptr;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationGranularity(
    std::size_t* granularity, const CUmemAllocationProp*, CUmemAllocationGranularity_flags
) {
    PITSTOP_ENTER_DRIVER();
    *granularity = kGranularity;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(
    CUdeviceptr* address, std::size_t bytes, std::size_t, CUdeviceptr, unsigned long long flags
) {
    PITSTOP_ENTER_DRIVER();
    if (!is_granular(bytes) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    std::byte* const begin = reserve_range(bytes);
    if (begin == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = reinterpret_cast<CUdeviceptr>(begin);
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, std::size_t bytes) {
    PITSTOP_ENTER_DRIVER();
    return free_range(pointer_to(address), bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAddressRange(CUdeviceptr* begin, std::size_t* bytes, CUdeviceptr address) {
    PITSTOP_ENTER_DRIVER();
    const std::optional<Allocation> found = find_memory(pointer_to(address));
    if (!found || is_page_locked(found->kind)) return CUDA_ERROR_INVALID_VALUE;
    *begin = reinterpret_cast<CUdeviceptr>(found->begin);
    *bytes = found->bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(
    CUmemGenericAllocationHandle* handle,
    std::size_t bytes,
    const CUmemAllocationProp* properties,
    unsigned long long flags
) {
    PITSTOP_ENTER_DRIVER();
    const int gpu = properties->location.id;
    if (gpu < 0 || gpu >= settings().num_gpus) return CUDA_ERROR_INVALID_DEVICE;
    if (!is_granular(bytes) || flags != 0 || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    const std::int64_t used = settings().memory_bytes - free_memory(gpu);
    if (used + static_cast<std::int64_t>(bytes) > memory_limit(gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    std::shared_ptr<Physical> physical = create_physical(gpu, bytes);
    if (physical == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    const bool is_exportable =
        properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    *handle = handles().add({std::move(physical), is_exportable});
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    PITSTOP_ENTER_DRIVER();
    const std::scoped_lock lock(handles().mutex);
    return handles().by_number.erase(handle) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemMap(
    CUdeviceptr address,
    std::size_t bytes,
    std::size_t offset,
    CUmemGenericAllocationHandle handle,
    unsigned long long flags
) {
    PITSTOP_ENTER_DRIVER();
    const Handle found = handles().find(handle);
    if (found.physical == nullptr || offset != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return map_range(pointer_to(address), bytes, found.physical) ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
    PITSTOP_ENTER_DRIVER();
    return unmap_range(pointer_to(address), bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(
    CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* descriptions, std::size_t num
) {
    PITSTOP_ENTER_DRIVER();
    std::vector<int> gpus;
    for (std::size_t i = 0; i < num; ++i) {
        if (descriptions[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
        gpus.push_back(descriptions[i].location.id);
        if (gpus.back() < 0 || gpus.back() >= settings().num_gpus) return CUDA_ERROR_INVALID_DEVICE;
    }
    return num > 0 && set_range_access(pointer_to(address), bytes, gpus) ? CUDA_SUCCESS
                                                                         : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemExportToShareableHandle(
    void* shareable,
    CUmemGenericAllocationHandle handle,
    CUmemAllocationHandleType type,
    unsigned long long
) {
    PITSTOP_ENTER_DRIVER();
    const Handle found = handles().find(handle);
    if (found.physical == nullptr || !found.is_exportable ||
        type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    const int fd = ::fcntl(found.physical->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    std::memcpy(shareable, &fd, sizeof fd);
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(
    CUmemGenericAllocationHandle* handle, void* os_handle, CUmemAllocationHandleType type
) {
    PITSTOP_ENTER_DRIVER();
    const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(os_handle));
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Physical> physical = import_physical(current_gpu(), fd);
    if (physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *handle = handles().add({std::move(physical), false});
    return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction function) {
    PITSTOP_ENTER_DRIVER();
    return load_code(current_gpu(), function, CodeOf::kProgram) ? CUDA_SUCCESS
                                                                : CUDA_ERROR_OUT_OF_MEMORY;
}

}  // extern "C"
