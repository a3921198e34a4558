// What kernels/cuda_device.cpp and kernels/linear_cublas.cpp are on a GPU: the device that the
// emulator shows, and the product that cuBLASLt would compute.
#include "kernels/cuda_device.h"
#include "kernels/device/launch.cuh"
#include "kernels/device_range.h"
#include "kernels/linear_cuda.h"
#include "kernels/reference.h"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

namespace pitstop {

void cuda_failed(const char* call, cudaError_t, const char* file, int line) {
    end_by_cuda_failure(fmt::format("{}:{}: {}", file, line, call));
}
void end_by_cuda_failure(const std::string& line) {
    std::fprintf(stderr, "%s\n", line.c_str());
    std::abort();
}
void set_cuda_failure_handler(CudaFailureHandler) {}

Result<int> num_cuda_devices() { return 1; }
Result<CudaDeviceInfo> open_cuda_device(int) {
    return CudaDeviceInfo{.name = "emulator", .compute_major = 9, .num_multiprocessors = 1};
}
void enter_cuda_device() {}
int compute_capability() { return 90; }

// What an emulated GPU has: enough for the bundled models.
constexpr std::int64_t kDeviceBytes = std::int64_t{256} << 20;
std::int64_t mapped_bytes = 0;

DeviceMemoryInfo device_memory_info() {
    return {.free_bytes = kDeviceBytes - mapped_bytes, .total_bytes = kDeviceBytes};
}

// Host memory that the host may not touch (emulator.h).
Result<DeviceRange> DeviceRange::reserve(std::int64_t bytes) {
    constexpr std::int64_t kGranularity = std::int64_t{2} << 20;
    DeviceRange range;
    range.bytes_ = (bytes + kGranularity - 1) / kGranularity * kGranularity;
    void* const begin = ::mmap(
        nullptr,
        static_cast<std::size_t>(range.bytes_),
        PROT_NONE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        -1,
        0
    );
    CHECK(begin != MAP_FAILED);
    range.data_ = static_cast<std::byte*>(begin);
    return range;
}
DeviceRange::~DeviceRange() {
    if (data_ == nullptr) return;
    if (is_mapped()) unmap();
    ::munmap(data_, static_cast<std::size_t>(bytes_));
}
Result<> DeviceRange::map() {
    if (bytes_ > kDeviceBytes - mapped_bytes) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "{} bytes of device memory asked for, {} are free",
            bytes_,
            kDeviceBytes - mapped_bytes
        );
    }
    mapped_bytes += bytes_;
    handle_ = 1;
    emulator::guard_from_host(data_, static_cast<std::size_t>(bytes_));
    return Ok{};
}
void DeviceRange::unmap() {
    emulator::forget_guarded(data_);
    ::madvise(data_, static_cast<std::size_t>(bytes_), MADV_DONTNEED);
    mapped_bytes -= bytes_;
    handle_ = 0;
}

void linear_cublas(const LinearArgs& args) {
    const emulator::DeviceAccess access;
    for (const LinearPart& part : args.parts) {
        for (std::int64_t m = 0; m < args.x.rows; ++m) {
            for (std::int64_t n = 0; n < part.w.rows; ++n) {
                double sum = 0.0;
                for (std::int64_t k = 0; k < args.x.cols; ++k)
                    sum += at(args.x, m, k) * double{to_float(part.w.data[n * part.w.stride + k])};
                if (part.bias != nullptr && part.y.dtype == DType::kBF16)
                    sum += double{to_float(part.bias[n])};
                if (args.mode == LinearMode::kAdd) sum += at(part.y, m, n);
                put(part.y, m, n, sum);
            }
        }
        if (part.bias != nullptr && part.y.dtype == DType::kF32) {
            const View2<float> y{
                static_cast<float*>(part.y.data), part.y.rows, part.y.cols, part.y.stride};
            add_bias_cuda(y, part.bias, args.stream);
        }
    }
}

}  // namespace pitstop
