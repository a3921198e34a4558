// RMSNorm over the last dimension, with the residual add before it:
//   x[t, i] += delta[t, i]                                   (if delta is given)
//   y[t, i] = (w_offset + w[i]) * x[t, i] / sqrt(mean_i(x[t, i]^2) + eps)
// Source: Zhang and Sennrich 2019 (arXiv:1910.07467), eq. 4; eps inside the root, as in Llama.
//
//   x      [T, H]  fp32, the residual stream; written only if delta is given
//   delta  [T, H]  fp32, a sublayer's output (after the all-reduce), or none
//   w      [H]     bf16; w_offset is 0, or 1 for weights that are stored around zero (Qwen3-Next)
//   y      [T, H]  fp32 or bf16; may be x or delta if fp32
//
// Accepts any H, and sums in fp32: 4 x 16 lanes, element i in lane i mod 64, then a fixed tree.
// Only H sets this order, so a row's bits do not depend on T.
//
// If the sum of squares is infinite or NaN, all of the row's y is NaN: otherwise a finite x whose
// squares overflow would become zeros, from which a model computes logits that look healthy.
// `marks` [T] reports it: 1 for such a row, else 0.
#pragma once

#include "kernels/tensor.h"

#include <cstdint>

namespace pitstop::kernels {

struct RmsNormArgs {
    View2<float> x{};            // [T, H]
    View2<const float> delta{};  // [T, H], or data null
    const bf16* w = nullptr;     // [H]
    ActView y{};                 // [T, H]
    float w_offset = 0.f;        // 0 or 1
    float eps = 0.f;
    std::uint8_t* marks = nullptr;  // [T], written; or null
    Stream stream{};
};

void check(const RmsNormArgs& args);
void rmsnorm_ref(const RmsNormArgs& args);
void rmsnorm_cuda(const RmsNormArgs& args);

}  // namespace pitstop::kernels
