#include "kernels/cuda_device.h"
#include "kernels/device/check.cuh"
#include "kernels/device_import.h"
#include "kernels/driver.h"

#include <cuda.h>

#include <cstring>

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

// Whatever a peer's handle can bring about; what breaks the context comes out at the next call.
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
            "the size of the sender's GPU memory is not known: {}",
            name_of(ranged)
        );
    }
    const std::size_t before = reinterpret_cast<CUdeviceptr>(data) - begin;
    import.bytes_ = static_cast<std::int64_t>(bytes - before);
    return import;
}

DeviceImport::~DeviceImport() {
    if (data_ != nullptr) CUDA_CHECK(cudaIpcCloseMemHandle(data_));
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
