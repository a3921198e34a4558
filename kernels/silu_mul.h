// The gated activation of the MLP:
//   y[t, i] = gate[t, i] / (1 + exp(-gate[t, i])) * up[t, i]
// Source: Shazeer 2020 (arXiv:2002.05202), SwiGLU.
//
//   gate, up  [T, F]  fp32 or bf16, both the same
//   y         [T, F]  fp32 or bf16; may be gate or up if the dtypes agree
#pragma once

#include "kernels/tensor.h"

namespace pitstop::kernels {

struct SiluMulArgs {
    ConstActView gate{};  // [T, F]
    ConstActView up{};    // [T, F]
    ActView y{};          // [T, F]
    Stream stream{};
};

void check(const SiluMulArgs& args);
void silu_mul_ref(const SiluMulArgs& args);
void silu_mul_cuda(const SiluMulArgs& args);

}  // namespace pitstop::kernels
