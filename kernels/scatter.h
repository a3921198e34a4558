// Changes single elements of a tensor:  data[at[i]] = values[i], or counts those that would change.
//
//   at      [num]  int64, each once
//   values  [num]  bf16
//   data    bf16, overlaps neither
#pragma once

#include "kernels/tensor.h"

namespace pitstop::kernels {

struct ScatterArgs {
    const std::int64_t* at = nullptr;
    const bf16* values = nullptr;
    std::int64_t num = 0;
    bf16* data = nullptr;
    // If not null, nothing is written, and the number of elements whose bits differ is ADDED here.
    std::uint64_t* num_different = nullptr;
    Stream stream{};
};

void check(const ScatterArgs& args);
void scatter_ref(const ScatterArgs& args);
void scatter_cuda(const ScatterArgs& args);

}  // namespace pitstop::kernels
