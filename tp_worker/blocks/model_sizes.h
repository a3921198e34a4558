// The sizes with which a model runs: how many tokens at once, how much KV, and in which precision.
#pragma once

#include "kernels/tensor.h"

#include <cstdint>
#include <string_view>

namespace pitstop::tp_worker {

// kBf16  products of bf16 by bf16: the inputs of a product are rounded to bf16 once; KV in bf16.
//        On a GPU the outputs q, k, v, gate and up are also bf16, which halves their bytes
// kFp32  the truth mode: fp32 activations and KV on the bf16 weights
enum class Compute : std::uint8_t { kBf16, kFp32 };
[[nodiscard]] std::string_view name_of(Compute compute);  // "bf16", "fp32"
// The type of a product's inputs, and of KV.
[[nodiscard]] kernels::DType act_dtype(Compute compute);

struct ModelSizes {
    std::int64_t tokens_max = 0;      // per step
    std::int64_t logit_rows_max = 0;  // per call of logits()
    std::int64_t num_positions = 0;   // per request, at most
    std::int64_t num_pages = 0;
    std::int64_t page_size = 0;          // P, tokens
    std::int64_t num_scratch_pages = 0;  // after the other pages, for padding (step_padding.h)
    std::int64_t adapter_rank_max = 0;   // 0: the model computes no adapters
    std::int64_t num_checkpoints = 0;    // copies of requests' states; 0 without states
    std::int64_t state_drafts_max = 0;   // drafts per step of a model with states; 0: none verified
};

}  // namespace pitstop::tp_worker
