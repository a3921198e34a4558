#include "kernels/cuda_device.h"
#include "kernels/device/check.cuh"
#include "kernels/driver.h"

namespace pitstop::kernels {
namespace {

constexpr unsigned kDriverVersion = 12000;  // the signatures above are of this version

template <class Function>
void resolve(const char* symbol, Function& function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status{};
#if CUDART_VERSION >= 12050
    CUDA_CHECK(
        cudaGetDriverEntryPointByVersion(symbol, &found, kDriverVersion, cudaEnableDefault, &status)
    );
#else
    static_cast<void>(kDriverVersion);
    CUDA_CHECK(cudaGetDriverEntryPoint(symbol, &found, cudaEnableDefault, &status));
#endif
    if (status != cudaDriverEntryPointSuccess) {
        end_by_cuda_failure(fmt::format("the driver has no {}", symbol));
    }
    function = reinterpret_cast<Function>(found);
}

Driver resolve_all() {
    Driver driver;
    resolve("cuGetErrorName", driver.get_error_name);
    resolve("cuMemGetAllocationGranularity", driver.get_granularity);
    resolve("cuMemAddressReserve", driver.address_reserve);
    resolve("cuMemAddressFree", driver.address_free);
    resolve("cuMemCreate", driver.create);
    resolve("cuMemRelease", driver.release);
    resolve("cuMemMap", driver.map);
    resolve("cuMemUnmap", driver.unmap);
    resolve("cuMemSetAccess", driver.set_access);
    resolve("cuMemExportToShareableHandle", driver.export_handle);
    resolve("cuMemImportFromShareableHandle", driver.import_handle);
    resolve("cuMemGetAddressRange", driver.get_address_range);
    return driver;
}

}  // namespace

const Driver& driver() {
    static const Driver instance = resolve_all();
    return instance;
}

std::string name_of(CUresult error) {
    const char* name = nullptr;
    return driver().get_error_name(error, &name) == CUDA_SUCCESS
               ? name
               : std::to_string(static_cast<int>(error));
}

}  // namespace pitstop::kernels
