// Declares the parts of the CUDA linear; for linear.cu, linear_gemv.cu and linear_cublas.cpp alone.
#pragma once

#include "kernels/linear.h"

#include <span>

namespace pitstop::kernels {

inline constexpr std::int64_t kGemvMaxM = 4;
// Multiplies M <= kGemvMaxM rows. REQUIRES: as linear_cublas().
void linear_gemv_cuda(const LinearArgs& args);
// Does the same for two parts, and computes silu_mul of what they give.
void linear_gemv_silu_mul_cuda(const LinearArgs& args, const ActView& gated);

// Multiplies by cuBLASLt. REQUIRES: x is bf16, K % 8 == 0, x and every w 16-byte aligned row by
// row.
void linear_cublas(const LinearArgs& args);
// This is tune_linear_cuda() for what linear_cublas() may be given.
int tune_linear_cublas(std::span<const LinearArgs> rotation);

// Computes y[m, n] += bias[n]; y is fp32.
void add_bias_cuda(View2<float> y, const bf16* bias, Stream stream);

}  // namespace pitstop::kernels
