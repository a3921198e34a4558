// Everything between the QKV product and attention, in one pass: RMSNorm of each query and key head
// (Qwen3; if weights are given), rotary embedding, and the write of keys and values into KV pages.
//
//   head' = (norm_offset + w) * head / sqrt(mean(head^2) + eps)       (if w is given)
//   out[i]         = head'[i] * cos[p, i] - head'[i + R/2] * sin[p, i]
//   out[i + R/2]   = head'[i + R/2] * cos[p, i] + head'[i] * sin[p, i]     0 <= i < R/2
// with p = positions[t] and R = 2 * cos.cols <= D elements rotated; the rest of the head
// is unchanged.
// Source: Su et al. 2021 (arXiv:2104.09864), in the half-split form of GPT-NeoX and Hugging Face.
//
//   q      [T, Q*D]      fp32 or bf16; its heads may lie further apart than D elements, as where
//                        each is followed by its gate (Qwen3-Next): then q has (Q - 1) *
//                        q_head_stride + D columns
//   k, v   [T, K*D]      the dtype of q
//   q_out  [T, Q*D]      fp32 or bf16: read by attention. May be q if the dtypes agree
//   cos    [positions, R/2], and sin: fp32; the scaling of the frequencies (Llama 3, YaRN), and
//                        YaRN's of cosines and sines, are in the tables
//   slots  [T]           where token t goes: page * P + offset in the page. Each once, none outside
//                        the cache; a padded row has a slot of a scratch page
//   kv                   written in its dtype: fp32, or bf16 rounded once
//
// A normed head whose sum of squares is infinite or NaN becomes NaN, as in rmsnorm.h. An infinite
// key element is written as NaN: otherwise queries whose score with it is -inf would skip the key
// as if they had attended to it.
#pragma once

#include "kernels/kv_cache.h"
#include "kernels/tensor.h"

namespace pitstop::kernels {

struct RopeArgs {
    ConstActView q{};                // [T, Q*D]
    std::int64_t q_head_stride = 0;  // elements from a head of q to the next; 0: D
    ConstActView k{};                // [T, K*D]
    ConstActView v{};                // [T, K*D]
    ActView q_out{};                 // [T, Q*D]
    KvCache kv{};
    const std::int64_t* slots = nullptr;      // [T]
    const std::int32_t* positions = nullptr;  // [T], < cos.rows
    View2<const float> cos{};                 // [positions, R/2]
    View2<const float> sin{};                 // [positions, R/2]
    const bf16* q_norm = nullptr;             // [D], or null: no norm
    const bf16* k_norm = nullptr;             // [D], or null: no norm
    float norm_offset = 0.f;                  // 0 or 1: as w_offset of rmsnorm.h
    float norm_eps = 0.f;
    Stream stream{};
};

[[nodiscard]] inline std::int64_t q_head_stride_of(const RopeArgs& args) {
    return args.q_head_stride == 0 ? args.kv.head_dim : args.q_head_stride;
}
void check(const RopeArgs& args);
void rope_ref(const RopeArgs& args);
void rope_cuda(const RopeArgs& args);

}  // namespace pitstop::kernels
