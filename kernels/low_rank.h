// Adds low-rank products to rows of y: those of adapters (LoRA) to the products of a base model.
//   y[m, n] += scale * sum_j b[n, j] h[m, j],   h[m, j] = sum_k a[j, k] x[m, k]
// Source: Hu et al. 2021 (arXiv:2106.09685); PEFT 0.21, Linear.forward of
// peft.tuners.lora.layer.
//
//   x      [M, K]  fp32 or bf16, of all segments
//   a      [r, K]  fp32
//   b      [N, r]  fp32
//   y      [M, N]  fp32 or bf16 (read, added to in fp32, and rounded once); overlaps no x
//   h      [num_rows, r]  fp32 scratch
//
// A segment is a run of rows that have one pair of a and b. The bits of a row depend on its own
// numbers alone, not on other rows (P6): h sums in 16 lanes, element k into lane k mod 16, each
// ascending, then the lanes' tree (linear.h); the sum over j ascends from 0, one product at a time;
// then it is scaled, then added.
#pragma once

#include "kernels/tensor.h"

#include <span>

namespace pitstop::kernels {

struct LowRankSegment {
    std::int64_t row_begin = 0;  // of x and of y
    std::int64_t num_rows = 0;
    View2<const float> a{};  // [r, K]
    View2<const float> b{};  // [N, r]
    float scale = 0;
    ActView y{};       // [M, N]
    View2<float> h{};  // [num_rows, r]; overlaps no other segment's
};

struct LowRankArgs {
    // The largest rank r. An adapter with a larger one is refused when it is loaded.
    static constexpr std::int64_t kRankMax = 512;

    ConstActView x{};                            // [M, K]
    std::span<const LowRankSegment> segments{};  // in host memory
    Stream stream{};
};

void check(const LowRankArgs& args);
void low_rank_ref(const LowRankArgs& args);

}  // namespace pitstop::kernels
