#include "kernels/runtime/check.cuh"
#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/device_memory.h"
#include "kernels/runtime/device_range.h"
#include "kernels/runtime/device_users.h"
#include "kernels/runtime/driver.h"
#include "kernels/runtime/stream_list.h"

#include <cuda.h>

#include <algorithm>
#include <bit>

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
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    return properties;
}

Error no_room(std::int64_t bytes) {
    const std::int64_t free = device_memory_info().free_bytes;
    return make_error(
        ErrorCode::kResourceExhausted,
        "{} bytes of device memory are needed, {} are free, {} are missing; {}",
        bytes,
        free,
        std::max<std::int64_t>(0, bytes - free),
        describe_device_users()
    );
}

// On a stream of its own: synchronizing the device would end captures (stream_list.h).
Result<> fill_with_zeros(std::byte* data, std::int64_t bytes) {
    ASSIGN_OR_RETURN(const DeviceStream stream, DeviceStream::create(StreamPriority::kBackground));
    ASSIGN_OR_RETURN(const DeviceEvent filled, DeviceEvent::create());
    fill_device(data, 0, bytes, stream.stream());
    filled.record(stream.stream());
    filled.wait(kDeviceWaitMax, "a fill of new memory", DeviceEvent::Watch::kLoose);
    return Ok{};
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
    static_assert(sizeof address == sizeof range.data_);
    range.data_ = std::bit_cast<std::byte*>(address);
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
    const CUmemAllocationProp properties = memory_properties();
    if (bytes_ > device_memory_info().total_bytes) return no_room(bytes_);
    const auto num = static_cast<std::size_t>((bytes_ + kChunkBytes - 1) / kChunkBytes);
    for (std::size_t i = 0; i < num; ++i) {
        CUmemGenericAllocationHandle handle = 0;
        const CUresult error =
            driver().create(&handle, static_cast<std::size_t>(bytes_of_chunk(i)), &properties, 0);
        if (error == CUDA_ERROR_OUT_OF_MEMORY) {
            // first, because device_users() must then count only other processes' memory
            release_handles();
            return no_room(bytes_);
        }
        check(error, "cuMemCreate");
        handles_.push_back(handle);
    }
    for (std::size_t i = 0; i < num; ++i) {
        check(
            driver().map(
                address_of(data_ + static_cast<std::int64_t>(i) * kChunkBytes),
                static_cast<std::size_t>(bytes_of_chunk(i)),
                0,
                handles_[i],
                0
            ),
            "cuMemMap"
        );
    }
    const auto size = static_cast<std::size_t>(bytes_);
    const CUmemAccessDesc access{
        .location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check(driver().set_access(address_of(data_), size, &access, 1), "cuMemSetAccess");
    return fill_with_zeros(data_, bytes_);
}

void DeviceRange::unmap() {
    CHECK(is_mapped());
    enter_cuda_device();
    wait_for_streams("work that may use memory to be released");
    check(driver().unmap(address_of(data_), static_cast<std::size_t>(bytes_)), "cuMemUnmap");
    release_handles();
}

void DeviceRange::release_handles() {
    for (const std::uint64_t handle : handles_) check(driver().release(handle), "cuMemRelease");
    handles_.clear();
}

Result<int> DeviceRange::export_chunk(std::size_t i) const {
    CHECK(i < handles_.size());
    enter_cuda_device();
    int fd = -1;
    const CUresult error =
        driver().export_handle(&fd, handles_[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (error == CUDA_SUCCESS) return fd;
    return make_error(
        ErrorCode::kResourceExhausted, "cuMemExportToShareableHandle: {}", name_of(error)
    );
}

}  // namespace pitstop::kernels
