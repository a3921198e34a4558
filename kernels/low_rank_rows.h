// low_rank.h on a GPU, where each row finds its adapter by itself: rows of any adapters, of any
// ranks, in one call. So a graph of a step stays valid whichever adapters its rows have. A row
// without an adapter costs each block a read of 8 bytes, and is not touched.
//
// The formula, and the dtypes of x and y, are those of low_rank.h; the sums have another order: h
// sums over k in 128 threads, elements 4p to 4p + 3 into thread p mod 128, each ascending, then a
// butterfly per warp, then the warps ascending; the sum over j ascends from 0; scaling and adding
// are fused. The order depends on K alone (P6).
//
// NOT MEASURED on a device. To measure: a step's cost with adapters, in a decode of 1 and 32
// requests of qwen3-8b's shape with adapters of rank 16, as bench/adapters.py has it for CPUs. The
// bytes of A and B are 1 % of the model's there.
#pragma once

#include "kernels/low_rank.h"

#include <span>

namespace pitstop::kernels {

// The matrices of an adapter for one of the base model's weights.
struct LowRankPair {
    const float* a = nullptr;  // [rank, K], rows back to back, 16-byte aligned
    const float* b = nullptr;  // [N, rank], rows back to back
    std::int32_t rank = 0;     // 0: this weight is not adapted
    float scale = 0;
};

struct LowRankRowsArgs {
    static constexpr std::int64_t kPartsMax = 4;  // as LinearArgs::kPartsMax

    // Weights that share x, as in a product (linear.h).
    struct Part {
        std::int64_t pair = 0;  // the index of the weight's pair in every table
        ActView y{};            // [M, N]
    };

    ConstActView x{};                            // [M, K]
    std::span<const Part> parts{};               // in host memory
    const LowRankPair* const* tables = nullptr;  // [M] by row; null: no adapter
    std::int64_t rank_max = 0;                   // of all tables; at most LowRankArgs::kRankMax
    View2<float> h{};                            // [M, parts x rank_max] scratch
    Stream stream{};
};

void check(const LowRankRowsArgs& args);
void low_rank_rows_cuda(const LowRankRowsArgs& args);

}  // namespace pitstop::kernels
