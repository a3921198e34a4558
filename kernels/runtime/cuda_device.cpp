#include "kernels/runtime/cuda_device.h"

#include "base/mutex.h"
#include "kernels/runtime/check.cuh"
#include "kernels/runtime/cublas_lt.h"
#include "kernels/runtime/cuda_libraries.h"
#include "kernels/runtime/kernel_code.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <optional>

namespace pitstop::kernels {
namespace {

constexpr int kComputeMajorMin = 8;  // cp.async and bf16 mma

struct Opened {
    Mutex mutex{};
    std::optional<CudaDeviceInfo> info GUARDED_BY(mutex){};
    std::atomic<int> compute_capability{0};
    std::atomic<int> num_multiprocessors{0};
    std::atomic<int> index{-1};
    std::atomic<CudaFailureHandler> failure_handler{nullptr};
};
Opened& opened() {
    static Opened instance;
    return instance;
}

std::string uuid_of(const cudaDeviceProp& properties) {
    std::string text = "GPU-";
    for (int i = 0; i < 16; ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += fmt::format("{:02x}", static_cast<unsigned char>(properties.uuid.bytes[i]));
    }
    return text;
}

// Turns a failed call at start-up into an error that states why the GPU cannot be used.
Result<> usable(cudaError_t error, int index, const char* call) {
    if (error == cudaSuccess) return Ok{};
    (void)cudaGetLastError();
    if (error == cudaErrorMemoryAllocation || error == cudaErrorDevicesUnavailable) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "GPU {} is in use by other processes: {}: {} ({}); free its memory, let it be shared, "
            "or choose --device cpu",
            index,
            call,
            cudaGetErrorString(error),
            cudaGetErrorName(error)
        );
    }
    return make_error(
        ErrorCode::kUnavailable,
        "GPU {} cannot be used: {}: {} ({})",
        index,
        call,
        cudaGetErrorString(error),
        cudaGetErrorName(error)
    );
}

}  // namespace

void cuda_failed(const char* call, cudaError_t error, const char* file, int line) {
    end_by_cuda_failure(fmt::format(
        "{}:{}: {}: {}, {}", file, line, call, cudaGetErrorName(error), cudaGetErrorString(error)
    ));
}

void end_by_cuda_failure(const std::string& line) {
    std::fprintf(stderr, "%s\n", line.c_str());
    std::fflush(stderr);
    if (const CudaFailureHandler handler = opened().failure_handler) handler(line);
    std::abort();
}

void set_cuda_failure_handler(CudaFailureHandler handler) { opened().failure_handler = handler; }

Result<int> num_cuda_devices() {
    int num = 0;
    const cudaError_t error = cudaGetDeviceCount(&num);
    if (error == cudaErrorNoDevice) return 0;
    int driver_version = 0;  // stays 0 without a driver
    if (error == cudaErrorInsufficientDriver &&
        cudaDriverGetVersion(&driver_version) == cudaSuccess && driver_version == 0) {
        return make_error(ErrorCode::kUnavailable, "no CUDA device: no NVIDIA driver is installed");
    }
    if (error != cudaSuccess) {
        return make_error(
            ErrorCode::kUnavailable,
            "no CUDA device: {} ({})",
            cudaGetErrorString(error),
            cudaGetErrorName(error)
        );
    }
    return num;
}

Result<CudaDeviceInfo> open_cuda_device(int index) {
    const MutexLock lock(opened().mutex);
    if (opened().info) {
        if (opened().info->index == index) return *opened().info;
        return make_error(
            ErrorCode::kFailedPrecondition,
            "this process uses GPU {} already; GPU {} cannot be opened too",
            opened().info->index,
            index
        );
    }
    ASSIGN_OR_RETURN(const int num, num_cuda_devices());
    if (index < 0 || index >= num) {
        return make_error(
            ErrorCode::kNotFound, "there is no GPU {}; the driver shows {}", index, num
        );
    }
    cudaDeviceProp properties{};
    RETURN_IF_ERROR(
        usable(cudaGetDeviceProperties(&properties, index), index, "cudaGetDeviceProperties")
    );
    if (properties.major < kComputeMajorMin) {
        return make_error(
            ErrorCode::kUnsupported,
            "GPU {} ({}) has compute capability {}.{}; {}.0 or newer is needed",
            index,
            properties.name,
            properties.major,
            properties.minor,
            kComputeMajorMin
        );
    }
    CudaDeviceInfo info{
        .index = index,
        .name = properties.name,
        .uuid = uuid_of(properties),
        .compute_major = properties.major,
        .compute_minor = properties.minor,
        .num_multiprocessors = properties.multiProcessorCount,
        .memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem),
        .l2_bytes = properties.l2CacheSize,
        .shared_bytes_per_block_max = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin),
    };
    CUDA_CHECK(cudaDriverGetVersion(&info.driver_version));
    CUDA_CHECK(cudaRuntimeGetVersion(&info.runtime_version));
    // Also creates the context: fails if the GPU is not available to us (exclusive mode, no
    // memory).
    RETURN_IF_ERROR(usable(cudaSetDevice(index), index, "cudaSetDevice"));
    if (const Result<int> loaded = load_kernels(); !loaded)
        return make_error(loaded.error().code, "GPU {}: {}", index, loaded.error().message);
    ASSIGN_OR_RETURN(const CublasLt* const cublas, CublasLt::load());
    info.cublas_lt_path = cublas->path;
    info.cublas_lt_version = static_cast<std::int64_t>(cublas->get_version());
    info.nccl_path = find_nccl();
    opened().info = info;
    opened().index = index;
    opened().num_multiprocessors = info.num_multiprocessors;
    opened().compute_capability = 10 * info.compute_major + info.compute_minor;
    return info;
}

CudaDeviceInfo opened_cuda_device() {
    const MutexLock lock(opened().mutex);
    CHECK(opened().info.has_value());
    return *opened().info;
}

bool has_peer_access(int index) {
    const int own = opened_cuda_device().index;
    int can = 0;
    if (index != own) CUDA_CHECK(cudaDeviceCanAccessPeer(&can, own, index));
    return index == own || can != 0;
}

void enter_cuda_device() {
    const int index = opened().index;
    CHECK(index >= 0);
    CUDA_CHECK(cudaSetDevice(index));
}

int compute_capability() { return opened().compute_capability; }

int num_multiprocessors() { return opened().num_multiprocessors; }

DeviceMemoryInfo device_memory_info() {
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    return {
        .free_bytes = static_cast<std::int64_t>(free_bytes),
        .total_bytes = static_cast<std::int64_t>(total_bytes)};
}

}  // namespace pitstop::kernels
