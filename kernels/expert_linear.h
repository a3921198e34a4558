// The matrix products of a pass's experts (expert_rows.h), one or two with the same x:
//   y[r, n] = sum_k x[r, k] * w_e[n, k]     for the rows r of expert e
//
//   x       [R, K]    fp32 or bf16, rows 4-byte aligned; rows in order of expert
//   w       [N, K]    bf16, row-major: of the first expert; expert e's is e * expert_stride later
//   begins  [E + 1]   int32, in the ops' memory: expert e has rows [begins[e], begins[e + 1])
//   y       [R, N]    fp32 or bf16 (rounded once, at the end); never overlaps x
//
// Rows from begins[E] on are left unchanged. Weights of experts without rows are not read. The sum
// over k is linear's (linear.h): the bits of a row depend only on x, w and K (P6).
#pragma once

#include "kernels/tensor.h"

#include <cstdint>
#include <span>

namespace pitstop::kernels {

struct ExpertLinearPart {
    View2<const bf16> w{};           // [N, K], of the first expert
    std::int64_t expert_stride = 0;  // elements
    ActView y{};                     // [R, N]
};

struct ExpertLinearArgs {
    static constexpr std::size_t kPartsMax = 2;

    ConstActView x{};                           // [R, K]
    std::span<const ExpertLinearPart> parts{};  // 1 to kPartsMax, in host memory
    const std::int32_t* begins = nullptr;       // [E + 1]
    std::int32_t num_experts = 0;
    Stream stream{};
};

void check(const ExpertLinearArgs& args);
void expert_linear_ref(const ExpertLinearArgs& args);
// Few rows: CUDA cores; more: mma.sync; many per expert on Hopper: wgmma. Their bits differ.
void expert_linear_cuda(const ExpertLinearArgs& args);
// Computes the same bits for any number of rows (linear.h).
void expert_linear_cuda_deterministic(const ExpertLinearArgs& args);

}  // namespace pitstop::kernels
