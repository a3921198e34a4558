// What kernels/cuda_device.cpp and kernels/linear_cublas.cpp are on a GPU: the device that the
// emulator shows, and the product that cuBLASLt would compute.
#include "kernels/cuda_device.h"
#include "kernels/device/launch.cuh"
#include "kernels/linear_cuda.h"
#include "kernels/reference.h"

#include <cstdio>
#include <cstdlib>

namespace pitstop {

void cuda_failed(const char* call, cudaError_t, const char* file, int line) {
    std::fprintf(stderr, "%s:%d: %s\n", file, line, call);
    std::abort();
}

Result<int> num_cuda_devices() { return 1; }
Result<CudaDeviceInfo> open_cuda_device(int) {
    return CudaDeviceInfo{.name = "emulator", .compute_major = 9, .num_multiprocessors = 1};
}
int compute_capability() { return 90; }
DeviceMemoryInfo device_memory_info() { return {}; }

void linear_cublas(const LinearArgs& args) {
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
