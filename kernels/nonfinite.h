// Counts logits that a sampler must not draw from:
//   counts[r] = number of infinities and NaNs in logits[r, :]
//
//   logits  [R, V]  fp32
//   counts  [R]     int32, written
#pragma once

#include "kernels/tensor.h"

namespace pitstop::kernels {

struct CountNonfiniteArgs {
    View2<const float> logits{};     // [R, V]
    std::int32_t* counts = nullptr;  // [R]
    Stream stream{};
};

void check(const CountNonfiniteArgs& args);
void count_nonfinite_ref(const CountNonfiniteArgs& args);
void count_nonfinite_cuda(const CountNonfiniteArgs& args);

}  // namespace pitstop::kernels
