#include "kernels/cuda_device.h"
#include "kernels/device/check.cuh"
#include "kernels/device_range.h"

#include <cuda.h>

#include <optional>
#include <string>

namespace pitstop::kernels {
namespace {

// The driver's functions, found at run time: nothing links libcuda, so that what is built starts
// where there is no driver.
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
};

constexpr unsigned kDriverVersion = 12000;  // whose signatures are declared above

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
    return driver;
}

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

void check(CUresult error, const char* call) {
    if (error != CUDA_SUCCESS) end_by_cuda_failure(fmt::format("{}: {}", call, name_of(error)));
}

CUmemAllocationProp memory_properties() {
    int device = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    return properties;
}

CUdeviceptr address_of(const std::byte* data) { return reinterpret_cast<CUdeviceptr>(data); }

}  // namespace

Result<DeviceRange> DeviceRange::reserve(std::int64_t bytes) {
    CHECK(bytes > 0);
    enter_cuda_device();
    const CUmemAllocationProp properties = memory_properties();
    std::size_t granularity = 0;
    check(
        driver().get_granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        "cuMemGetAllocationGranularity"
    );
    const std::size_t size =
        (static_cast<std::size_t>(bytes) + granularity - 1) / granularity * granularity;
    CUdeviceptr address = 0;
    const CUresult error = driver().address_reserve(&address, size, 0, 0, 0);
    if (error != CUDA_SUCCESS) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "cuMemAddressReserve of {} bytes: {}",
            size,
            name_of(error)
        );
    }
    DeviceRange range;
    range.data_ = reinterpret_cast<std::byte*>(address);
    range.bytes_ = static_cast<std::int64_t>(size);
    return range;
}

DeviceRange::~DeviceRange() {
    if (data_ == nullptr) return;
    if (is_mapped()) unmap();
    check(
        driver().address_free(address_of(data_), static_cast<std::size_t>(bytes_)),
        "cuMemAddressFree"
    );
}

Result<> DeviceRange::map() {
    CHECK(!is_mapped());
    enter_cuda_device();
    const auto size = static_cast<std::size_t>(bytes_);
    const CUmemAllocationProp properties = memory_properties();
    CUmemGenericAllocationHandle handle = 0;
    const CUresult error = driver().create(&handle, size, &properties, 0);
    if (error == CUDA_ERROR_OUT_OF_MEMORY) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "{} bytes of device memory asked for, {} are free",
            bytes_,
            device_memory_info().free_bytes
        );
    }
    check(error, "cuMemCreate");
    check(driver().map(address_of(data_), size, 0, handle, 0), "cuMemMap");
    const CUmemAccessDesc access{
        .location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check(driver().set_access(address_of(data_), size, &access, 1), "cuMemSetAccess");
    CHECK(handle != 0);
    handle_ = handle;
    CUDA_CHECK(cudaMemset(data_, 0, size));
    CUDA_CHECK(cudaDeviceSynchronize());
    return Ok{};
}

void DeviceRange::unmap() {
    CHECK(is_mapped());
    enter_cuda_device();
    CUDA_CHECK(cudaDeviceSynchronize());
    check(driver().unmap(address_of(data_), static_cast<std::size_t>(bytes_)), "cuMemUnmap");
    check(driver().release(std::exchange(handle_, 0)), "cuMemRelease");
}

}  // namespace pitstop::kernels
