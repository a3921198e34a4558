// Matrix products with weights in checkpoint layout:
//   y[m, n] = sum_k x[m, k] * w[n, k]  (+ bias[n])  (+ y[m, n] if mode is kAdd)
// for one to four weights that share x in one call: q, k and v; gate and up. An update of the
// weights needs no repacking (design section 7).
//
//   x     [M, K]    fp32 or bf16, rows 4-byte aligned
//   w     [N, K]    bf16, row-major
//   bias  [N]       bf16 or none
//   y     [M, N]    fp32 or bf16 (rounded once, at the end); kAdd: fp32 only. Never overlaps x
//
// Accepts any M, N, K >= 1; M = 0 does nothing. The sum over k runs in fp32 in an order that only K
// sets: the same for every M, every position in the batch and every number of threads (P6). On the
// CPU: 16 lanes; fp32 x puts element k into lane k mod 16, bf16 x pairs (2i, 2i + 1) into lane i
// mod 16, the odd one first; each lane ascends in k; then a fixed tree over the lanes, the bias, y.
//
// VDPBF16PS (avx512bf16) treats denormal inputs as zero and flushes denormal results; the other
// instructions do not.
#pragma once

#include "kernels/tensor.h"

#include <span>

namespace pitstop::kernels {

enum class LinearMode : std::uint8_t { kWrite, kAdd };

struct LinearPart {
    View2<const bf16> w{};       // [N, K]
    const bf16* bias = nullptr;  // [N], or null
    ActView y{};                 // [M, N]
};

struct LinearArgs {
    static constexpr std::size_t kPartsMax = 4;

    ConstActView x{};                     // [M, K]
    std::span<const LinearPart> parts{};  // 1 to kPartsMax, in host memory
    LinearMode mode = LinearMode::kWrite;
    Workspace workspace{};  // CUDA: a smaller one or none costs speed, never correctness
    Stream stream{};
};

void check(const LinearArgs& args);
void linear_ref(const LinearArgs& args);
void linear_cuda(const LinearArgs& args);

// Computes two products, gate and up, and their silu_mul into `gated` [M, N] in one pass. Returns
// false without doing anything if no kernel does so for these arguments. The bits are those of
// linear_cuda() and silu_mul_cuda(). The contents of the parts' y are undefined afterwards.
// REQUIRES: two parts of one shape and one type.
[[nodiscard]] bool linear_silu_mul_cuda(const LinearArgs& args, const ActView& gated);

// For CUDA when the bits of a row must not depend on the batch: one instruction shape, k ascending,
// one sum per output, for every M (P6). K is not split even for few rows, because the tiles of many
// rows would need as many sums. linear_cuda() guarantees this only for fp32 x.
void linear_cuda_deterministic(const LinearArgs& args);

// Times the products of rotation[0] whose choice is not known. `rotation` has the same call with
// the weights of several layers; timing them in turn leaves the caches as in a step. The outputs of
// all are overwritten. Products that cuBLASLt does not compute are skipped. Returns how many were
// timed. REQUIRES: as linear_cuda(); the GPU has no other work.
int tune_linear_cuda(std::span<const LinearArgs> rotation);

// The most memory that cuBLASLt may use on CUDA. One workspace per stream; a captured graph keeps
// its address.
inline constexpr std::int64_t kLinearCudaWorkspaceBytes = std::int64_t{32} << 20;

}  // namespace pitstop::kernels
