// The output gate of attention (Qwen3-Next): each head is multiplied by the sigmoid of its gate,
//   y[t, h * D + i] *= 1 / (1 + exp(-gate[t, h * gate_head_stride + i]))
// Source: transformers 5.24, Qwen3NextAttention.
//
//   y     [T, Q*D]  fp32 or bf16
//   gate  [T, (Q - 1) * gate_head_stride + D]  fp32 or bf16, independently
//
// A gate that is infinite or NaN gives NaN: a sigmoid of 0 or 1 would hide the fault.
#pragma once

#include "kernels/tensor.h"

#include <cstdint>

namespace pitstop::kernels {

struct GateHeadsArgs {
    ActView y{};                        // [T, Q*D]
    std::int64_t head_dim = 0;          // D, divides y's columns
    ConstActView gate{};                // begins at the gate of head 0; the formula is above
    std::int64_t gate_head_stride = 0;  // elements from a head's gate to the next one's, >= D
    Stream stream{};
};

void check(const GateHeadsArgs& args);
void gate_heads_ref(const GateHeadsArgs& args);
void gate_heads_cuda(const GateHeadsArgs& args);

}  // namespace pitstop::kernels
