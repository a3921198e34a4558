// The CUDA driver's functions, found at run time: nothing links libcuda, so that programs start
// without a driver.
#pragma once

#include <cuda.h>

#include <string>

namespace pitstop::kernels {

struct Driver {
    decltype(&cuGetErrorName) get_error_name = nullptr;
    decltype(&cuMemGetAllocationGranularity) get_granularity = nullptr;
    decltype(&cuMemAddressReserve) address_reserve = nullptr;
    decltype(&cuMemAddressFree) address_free = nullptr;
    decltype(&cuMemCreate) create = nullptr;
    decltype(&cuMemRelease) release = nullptr;
    decltype(&cuMemMap) map = nullptr;
    decltype(&cuMemUnmap) unmap = nullptr;
    decltype(&cuMemSetAccess) set_access = nullptr;
    decltype(&cuMemExportToShareableHandle) export_handle = nullptr;
    decltype(&cuMemImportFromShareableHandle) import_handle = nullptr;
    decltype(&cuMemGetAddressRange) get_address_range = nullptr;
    decltype(&cuFuncLoad) load_function = nullptr;
};

// REQUIRES: a device is open. A missing function ends the process.
[[nodiscard]] const Driver& driver();

[[nodiscard]] std::string name_of(CUresult error);

}  // namespace pitstop::kernels
