// The part of CUDA's driver API that the project calls, as CUDA 13.0 declares it. Source: CUDA
// Driver API, "Virtual Memory Management", "Primary Context Management", "Memory Management".
#pragma once

#include <cstddef>

enum CUresult {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_UNKNOWN = 999,
};
enum CUmemAllocationType { CU_MEM_ALLOCATION_TYPE_PINNED = 1 };
enum CUmemLocationType { CU_MEM_LOCATION_TYPE_DEVICE = 1 };
enum CUmemAccess_flags { CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };
enum CUmemAllocationGranularity_flags {
    CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
};
enum CUmemAllocationHandleType {
    CU_MEM_HANDLE_TYPE_NONE = 0,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
};

using CUdevice = int;
using CUcontext = struct CUctx_st*;
using CUfunction = struct CUfunc_st*;
using CUdeviceptr = unsigned long long;
using CUmemGenericAllocationHandle = unsigned long long;
struct CUipcMemHandle {
    char reserved[64];
};
struct CUmemLocation {
    CUmemLocationType type;
    int id;
};
struct CUmemAllocationProp {
    CUmemAllocationType type;
    CUmemAllocationHandleType requestedHandleTypes;
    CUmemLocation location;
};
struct CUmemAccessDesc {
    CUmemLocation location;
    CUmemAccess_flags flags;
};

extern "C" {

CUresult cuGetErrorName(CUresult error, const char** name);
CUresult cuMemGetAllocationGranularity(
    std::size_t* granularity,
    const CUmemAllocationProp* properties,
    CUmemAllocationGranularity_flags option
);
CUresult cuMemAddressReserve(
    CUdeviceptr* address,
    std::size_t bytes,
    std::size_t alignment,
    CUdeviceptr wanted,
    unsigned long long flags
);
CUresult cuMemAddressFree(CUdeviceptr address, std::size_t bytes);
CUresult cuMemGetAddressRange(CUdeviceptr* begin, std::size_t* bytes, CUdeviceptr address);
CUresult cuMemCreate(
    CUmemGenericAllocationHandle* handle,
    std::size_t bytes,
    const CUmemAllocationProp* properties,
    unsigned long long flags
);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuMemMap(
    CUdeviceptr address,
    std::size_t bytes,
    std::size_t offset,
    CUmemGenericAllocationHandle handle,
    unsigned long long flags
);
CUresult cuMemUnmap(CUdeviceptr address, std::size_t bytes);
CUresult cuMemSetAccess(
    CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* descriptions, std::size_t num
);
CUresult cuMemExportToShareableHandle(
    void* shareable,
    CUmemGenericAllocationHandle handle,
    CUmemAllocationHandleType type,
    unsigned long long flags
);
CUresult cuMemImportFromShareableHandle(
    CUmemGenericAllocationHandle* handle, void* os_handle, CUmemAllocationHandleType type
);
CUresult cuFuncLoad(CUfunction function);

// The library's functions by the names that it exports, for programs that open it.
CUresult cuInit(unsigned flags);
CUresult cuDeviceGet(CUdevice* device, int ordinal);
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext* context);
CUresult cuMemGetAddressRange_v2(CUdeviceptr* begin, std::size_t* bytes, CUdeviceptr address);
CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr begin);

}  // extern "C"
