#include "kernels/cuda_device.h"
#include "kernels/device/check.cuh"
#include "kernels/device_range.h"
#include "kernels/driver.h"

#include <cuda.h>

namespace pitstop::kernels {
namespace {

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
