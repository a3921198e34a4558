// The parts of the CUDA expert_linear; only for expert_linear.cu and expert_linear_wgmma.cu.
#pragma once

#include "kernels/expert_linear.h"

namespace pitstop::kernels {

// Multiplies by wgmma. The hardware sums the products of an instruction in an order of its own, so
// the bits differ from those of the other kernels. REQUIRES: compute capability 9.0; x is bf16, K %
// 8 == 0, x and every w 16-byte aligned row by row.
void expert_linear_wgmma_cuda(const ExpertLinearArgs& args);

}  // namespace pitstop::kernels
