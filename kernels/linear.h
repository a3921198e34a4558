// Computes matrix products with weights in checkpoint layout:
//   y[m, n] = sum_k x[m, k] * w[n, k]  (+ bias[n])  (+ y[m, n] where mode is kAdd)
// for one to four weights that share x in one call: q, k and v; gate and up. An update of the
// weights needs no repacking (design section 7).
//
//   x     [M, K]    fp32 or bf16, rows 4-byte aligned
//   w     [N, K]    bf16, row-major
//   bias  [N]       bf16 or none
//   y     [M, N]    fp32 or bf16 (rounded once, at the end); kAdd: fp32 only. Never overlaps x
//
// It takes any M, N, K >= 1; M = 0 does nothing. The sum over k runs in fp32 in an order set by K
// alone: the same for every M, every position in the batch and every number of threads (P6). On the
// CPU: 16 lanes; fp32 x puts element k into lane k mod 16, bf16 x pairs (2i, 2i + 1) into lane i
// mod 16, the odd one first; each lane ascends in k; then a fixed tree over the lanes, the bias, y.
//
// VDPBF16PS (avx512bf16) takes denormal inputs as zero and flushes denormal results; the others do
// not.
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
    Workspace workspace{};  // CUDA: less than asked for costs speed, never correctness; or none
    Stream stream{};
};

void check(const LinearArgs& args);
void linear_ref(const LinearArgs& args);
void linear_cuda(const LinearArgs& args);

// Computes silu_mul of two products, gate and up, into `gated` [M, N], in one pass with them where
// it can: false, and nothing was done, where it cannot. The bits of linear_cuda() and
// silu_mul_cuda(); what the parts' y hold afterwards is undefined. REQUIRES: two parts of one shape
// and one type.
[[nodiscard]] bool linear_silu_mul_cuda(const LinearArgs& args, const ActView& gated);

// Multiplies on CUDA where the bits of a row must not depend on the batch: one instruction shape, k
// ascending, one sum per output, for every M (P6). K is not split for few rows, either: the tiles
// of many would have to keep as many sums. linear_cuda() promises this for its fp32 x alone.
void linear_cuda_deterministic(const LinearArgs& args);

// Times the product of rotation[0], unless its choice is known, over all of them in turn: the same
// product with the weights of several layers, so that each finds the caches as a step's does. What
// they write is overwritten. Products that are not cuBLASLt's are left alone. Returns how many were
// timed. REQUIRES: as linear_cuda(); the GPU has nothing else to do.
int tune_linear_cuda(std::span<const LinearArgs> rotation);

// Bounds what cuBLASLt may use on CUDA. One per stream; a captured graph keeps its address.
inline constexpr std::int64_t kLinearCudaWorkspaceBytes = std::int64_t{32} << 20;

}  // namespace pitstop::kernels
