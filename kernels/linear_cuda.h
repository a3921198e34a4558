// How the CUDA linear is put together; for linear.cu and linear_cublas.cpp alone.
#pragma once

#include "kernels/linear.h"

#include <cstdint>

namespace pitstop {

// By cuBLASLt. REQUIRES: x is bf16, K % 8 == 0, x and every w 16-byte aligned row by row.
void linear_cublas(const LinearArgs& args);

// y[m, n] += bias[n]; y fp32.
void add_bias_cuda(View2<float> y, const bf16* bias, Stream stream);

// The M that an algorithm is chosen for: the largest that shares it. Steps of 16 to 256, of 64 to
// 1024, of 512 above: a handful of choices per weight, each at most 2x off, 6 % from M = 256 on.
[[nodiscard]] constexpr std::int64_t gemm_bucket(std::int64_t M) {
    const std::int64_t step = M <= 256 ? 16 : M <= 1024 ? 64 : 512;
    return (M + step - 1) / step * step;
}

}  // namespace pitstop
