#include "kernels/runtime/check.cuh"
#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/driver.h"

namespace pitstop::kernels {
namespace {

constexpr unsigned kDriverVersion = 12000;  // the version of the signatures in driver.h

template <class Function>
void find_driver_function(
    const char* symbol, Function& function, [[maybe_unused]] unsigned version = kDriverVersion
) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status{};
#if CUDART_VERSION >= 12050
    CUDA_CHECK(cudaGetDriverEntryPointByVersion(symbol, &found, version, cudaEnableDefault, &status)
    );
#else
    CUDA_CHECK(cudaGetDriverEntryPoint(symbol, &found, cudaEnableDefault, &status));
#endif
    if (status != cudaDriverEntryPointSuccess) {
        end_by_cuda_failure(fmt::format("the driver has no {}", symbol));
    }
    function = reinterpret_cast<Function>(found);
}

Driver find_driver_functions() {
    Driver driver;
    find_driver_function("cuGetErrorName", driver.get_error_name);
    find_driver_function("cuMemGetAllocationGranularity", driver.get_granularity);
    find_driver_function("cuMemAddressReserve", driver.address_reserve);
    find_driver_function("cuMemAddressFree", driver.address_free);
    find_driver_function("cuMemCreate", driver.create);
    find_driver_function("cuMemRelease", driver.release);
    find_driver_function("cuMemMap", driver.map);
    find_driver_function("cuMemUnmap", driver.unmap);
    find_driver_function("cuMemSetAccess", driver.set_access);
    find_driver_function("cuMemExportToShareableHandle", driver.export_handle);
    find_driver_function("cuMemImportFromShareableHandle", driver.import_handle);
    find_driver_function("cuMemGetAddressRange", driver.get_address_range);
    find_driver_function("cuFuncLoad", driver.load_function, 12040);
    return driver;
}

}  // namespace

const Driver& driver() {
    static const Driver instance = find_driver_functions();
    return instance;
}

std::string name_of(CUresult error) {
    const char* name = nullptr;
    return driver().get_error_name(error, &name) == CUDA_SUCCESS
               ? name
               : std::to_string(static_cast<int>(error));
}

}  // namespace pitstop::kernels
