// Picks the rows whose logits are wanted:  y[i, :] = x[row_index[i], :].
//
//   x          [T, H]  fp32 or bf16
//   row_index  [N]     int32, each in [0, T); may repeat
//   y          [N, H]  the dtype of x; does not overlap x
#pragma once

#include "kernels/tensor.h"

namespace pitstop::kernels {

struct GatherRowsArgs {
    ConstActView x{};                         // [T, H]
    const std::int32_t* row_index = nullptr;  // [y.rows]
    ActView y{};                              // [N, H]
    Stream stream{};
};

void check(const GatherRowsArgs& args);
void gather_rows_ref(const GatherRowsArgs& args);
void gather_rows_cuda(const GatherRowsArgs& args);

}  // namespace pitstop::kernels
