// Sorts the work of a pass by expert, and returns the results to the tokens. Token t and its j-th
// expert are pair (t, j); each pair whose expert is one of [first, first + E) of this rank has a
// row, in order of expert, then token, then j.
//
// sort_rows_by_expert():
//   chosen    [T, k]    int32, experts of the whole model (router.h)
//   begins    [E + 1]   int32; expert first + e has rows [begins[e], begins[e + 1])
//   token_of  [T * k]   int32; of each row, for gather_rows; 0 after the last row
//   row_of    [T, k]    int32; of each pair, -1 if its expert belongs to another rank
//
// sum_expert_rows():
//   y[t, :] = sum_j weights[t, j] * rows[row_of[t, j], :]  (+ sigmoid(gate[t]) * shared[t, :])
// in fp32, j ascending from 0, the shared expert last: in the router's order, whatever else is in
// the pass (P6). Pairs of other ranks are skipped.
//   rows      [>= R, H]  fp32
//   weights   [T, k]     fp32
//   shared    [T, H]     fp32, or none;  gate [T, 1] fp32
//   y         [T, H]     fp32; overlaps nothing
#pragma once

#include "kernels/tensor.h"

#include <cstdint>

namespace pitstop::kernels {

struct SortRowsByExpertArgs {
    View2<const std::int32_t> chosen{};  // [T, k]
    std::int32_t first_expert = 0;
    std::int32_t num_experts = 0;  // E of this rank, 1 to RouteArgs::kExpertsMax
    std::int32_t* begins = nullptr;
    std::int32_t* token_of = nullptr;
    View2<std::int32_t> row_of{};  // [T, k]
    Stream stream{};
};

struct SumExpertRowsArgs {
    View2<const float> rows{};
    View2<const std::int32_t> row_of{};  // [T, k]
    View2<const float> weights{};        // [T, k]
    View2<const float> shared{};         // [T, H], or no rows
    View2<const float> gate{};           // [T, 1], if there is a shared expert
    View2<float> y{};                    // [T, H]
    Stream stream{};
};

void check(const SortRowsByExpertArgs& args);
void sort_rows_by_expert_ref(const SortRowsByExpertArgs& args);
void sort_rows_by_expert_cuda(const SortRowsByExpertArgs& args);

void check(const SumExpertRowsArgs& args);
void sum_expert_rows_ref(const SumExpertRowsArgs& args);
void sum_expert_rows_cuda(const SumExpertRowsArgs& args);

}  // namespace pitstop::kernels
