// The parts of the CUDA linear; only for linear.cu, linear_gemv.cu and linear_cublas.cpp.
#pragma once

#include "kernels/linear.h"

#include <span>

namespace pitstop::kernels {

inline constexpr std::int64_t kGemvMaxM = 4;
// Multiplies M <= kGemvMaxM rows. REQUIRES: as linear_cublas().
void linear_gemv_cuda(const LinearArgs& args);
// The same for two parts, followed by silu_mul of their results.
void linear_gemv_silu_mul_cuda(const LinearArgs& args, const ActView& gated);

// Multiplies with cuBLASLt. REQUIRES: x is bf16, K % 8 == 0, x and every w 16-byte
// aligned row by row.
void linear_cublas(const LinearArgs& args);
// tune_linear_cuda() for the products that linear_cublas() accepts.
int tune_linear_cublas(std::span<const LinearArgs> rotation);

// Computes y[m, n] += bias[n]; y is fp32.
void add_bias_cuda(View2<float> y, const bf16* bias, Stream stream);

}  // namespace pitstop::kernels
