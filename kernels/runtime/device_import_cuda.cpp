#include "kernels/runtime/check.cuh"
#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/device_import.h"
#include "kernels/runtime/driver.h"

#include <cuda.h>

#include <bit>
#include <cstring>
#include <unistd.h>

namespace pitstop::kernels {
namespace {

template <class Handle>
Result<Handle> read_handle(std::string_view bytes) {
    static_assert(sizeof(Handle) == kIpcHandleBytes);
    if (bytes.size() != kIpcHandleBytes) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "an IPC handle of {} bytes; CUDA's have {}",
            bytes.size(),
            kIpcHandleBytes
        );
    }
    Handle handle{};
    std::memcpy(&handle, bytes.data(), sizeof handle);
    return handle;
}

// Makes an Error of any failure that a peer's handle can cause. If the failure broke the context,
// the next call fails.
Error refusal(std::string_view what, cudaError_t error) {
    static_cast<void>(cudaGetLastError());
    return make_error(
        error == cudaErrorMemoryAllocation ? ErrorCode::kResourceExhausted
                                           : ErrorCode::kUnavailable,
        "the sender's {} cannot be opened: {} ({})",
        what,
        cudaGetErrorName(error),
        cudaGetErrorString(error)
    );
}

}  // namespace

Result<DeviceImport> DeviceImport::open(std::string_view handle) {
    ASSIGN_OR_RETURN(const auto memory, read_handle<cudaIpcMemHandle_t>(handle));
    enter_cuda_device();
    void* data = nullptr;
    const cudaError_t error = cudaIpcOpenMemHandle(&data, memory, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess) return refusal("GPU memory", error);
    DeviceImport import;
    import.data_ = static_cast<std::byte*>(data);
    CUdeviceptr begin = 0;
    std::size_t bytes = 0;
    const CUresult ranged =
        driver().get_address_range(&begin, &bytes, reinterpret_cast<CUdeviceptr>(data));
    if (ranged != CUDA_SUCCESS) {
        return make_error(
            ErrorCode::kUnavailable,
            "cannot find out the size of the sender's GPU memory: {}",
            name_of(ranged)
        );
    }
    const std::size_t before = reinterpret_cast<CUdeviceptr>(data) - begin;
    import.bytes_ = static_cast<std::int64_t>(bytes - before);
    return import;
}

Result<DeviceImport> DeviceImport::open_chunks(
    std::int64_t chunk_bytes, std::int64_t num, const ChunkFd& fd_of
) {
    enter_cuda_device();
    const std::int64_t total = device_memory_info().total_bytes;
    if (chunk_bytes <= 0 || num <= 0 || chunk_bytes > total || num > total / chunk_bytes) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} chunks of {} bytes of GPU memory; the device has {} bytes",
            num,
            chunk_bytes,
            total
        );
    }
    const auto size = static_cast<std::size_t>(chunk_bytes * num);
    CUdeviceptr address = 0;
    const CUresult error = driver().address_reserve(&address, size, 0, 0, 0);
    if (error != CUDA_SUCCESS) {
        return make_error(
            error == CUDA_ERROR_INVALID_VALUE ? ErrorCode::kInvalidArgument
                                              : ErrorCode::kResourceExhausted,
            "{} addresses for {} chunks of {} bytes of GPU memory: {}",
            size,
            num,
            chunk_bytes,
            name_of(error)
        );
    }
    DeviceImport import;
    import.data_ = std::bit_cast<std::byte*>(address);
    import.bytes_ = static_cast<std::int64_t>(size);
    import.chunk_bytes_ = chunk_bytes;
    for (std::int64_t i = 0; i < num; ++i) {
        ASSIGN_OR_RETURN(const int fd, fd_of(i));
        Result<> mapped = import.map_next(fd);
        ::close(fd);
        RETURN_IF_ERROR(std::move(mapped));
    }
    int device = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    const CUmemAccessDesc access{
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const CUresult accessed = driver().set_access(address, size, &access, 1);
    if (accessed == CUDA_SUCCESS) return import;
    return make_error(
        ErrorCode::kUnavailable,
        "the sender's GPU memory cannot be accessed from this worker's device: {}",
        name_of(accessed)
    );
}

// The mapping keeps the memory alive, so the handle is released at once.
Result<> DeviceImport::map_next(int fd) {
    CUmemGenericAllocationHandle handle = 0;
    CUresult error = driver().import_handle(
        &handle,
        reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    );
    if (error == CUDA_SUCCESS) {
        const auto address = std::bit_cast<CUdeviceptr>(data_ + mapped_bytes_);
        error = driver().map(address, static_cast<std::size_t>(chunk_bytes_), 0, handle, 0);
        const CUresult released = driver().release(handle);
        if (released != CUDA_SUCCESS) end_by_cuda_failure("cuMemRelease: " + name_of(released));
    }
    if (error == CUDA_SUCCESS) {
        mapped_bytes_ += chunk_bytes_;
        return Ok{};
    }
    return make_error(
        error == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
        "chunk {} of the sender's GPU memory, of {} bytes, cannot be opened: {}",
        mapped_bytes_ / chunk_bytes_,
        chunk_bytes_,
        name_of(error)
    );
}

void DeviceImport::close_chunks() {
    const auto address = std::bit_cast<CUdeviceptr>(data_);
    CUresult error = CUDA_SUCCESS;
    if (mapped_bytes_ > 0) error = driver().unmap(address, static_cast<std::size_t>(mapped_bytes_));
    if (error == CUDA_SUCCESS)
        error = driver().address_free(address, static_cast<std::size_t>(bytes_));
    if (error != CUDA_SUCCESS)
        end_by_cuda_failure("closing a sender's GPU memory: " + name_of(error));
}

DeviceImport::~DeviceImport() {
    if (data_ == nullptr) return;
    enter_cuda_device();
    if (chunk_bytes_ > 0) {
        close_chunks();
    } else {
        CUDA_CHECK(cudaIpcCloseMemHandle(data_));
    }
}

std::string ipc_handle_of(const DeviceBuffer& buffer) {
    enter_cuda_device();
    cudaIpcMemHandle_t handle{};
    CUDA_CHECK(cudaIpcGetMemHandle(&handle, buffer.data()));
    return {handle.reserved, sizeof handle.reserved};
}

Result<EventImport> EventImport::open(std::string_view handle) {
    ASSIGN_OR_RETURN(const auto event, read_handle<cudaIpcEventHandle_t>(handle));
    enter_cuda_device();
    cudaEvent_t opened = nullptr;
    const cudaError_t error = cudaIpcOpenEventHandle(&opened, event);
    if (error != cudaSuccess) return refusal("event", error);
    EventImport import;
    import.handle_ = opened;
    return import;
}

EventImport::~EventImport() {
    if (handle_ != nullptr) CUDA_CHECK(cudaEventDestroy(static_cast<cudaEvent_t>(handle_)));
}

Result<bool> EventImport::is_done() const {
    const cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(handle_));
    if (error == cudaErrorNotReady) return false;
    if (error != cudaSuccess) return refusal("event", error);
    return true;
}

}  // namespace pitstop::kernels
