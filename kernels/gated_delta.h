// The gated delta net of hybrid models between its products: a causal depthwise convolution, and a
// recurrence over a state S [dk, dv] for each value head h, whose keys and queries are those of key
// head g = h / (nv / nk). Row r has new tokens q_starts[r] .. q_starts[r+1], in order:
//
//   u[c]  = silu(sum_j conv[c, j] * x[t - (W-1) + j, c])
//   q     = u_q / sqrt(|u_q|^2 + 1e-6) / sqrt(dk)
//   k     = u_k / sqrt(|u_k|^2 + 1e-6)
//   S    <- exp(-exp(a_log[h]) * softplus(a[t, h] + dt_bias[h])) * S
//   S    <- S + k (x) (sigmoid(b[t, h]) * (u_v - k S))
//   y     = norm_w * (q S) / sqrt(mean((q S)^2) + eps) * silu(z[t, h])
//
// where c counts channels, u_q and u_k are the channels of key head g, and u_v those of h.
//
// A place stores S and the last W-1 inputs of the convolution; each request has one. A row whose
// first position is 0 starts from zeros. Other rows continue from the state in `from_places`: their
// own place, or a saved one. No row reads a place that another row writes. On a GPU a row of
// padding, whose place is -1, starts from zeros and stores nothing. The last tokens of a row may be
// guesses (`stored_ends`): their outputs are computed, and no place gets a state after them.
//
//   q, k, v, z, b, a  [T, heads]  columns of products, fp32 or bf16, all the same (HeadColumns)
//   y                 [T, nv*dv]  fp32 or bf16; aliases nothing
//   conv              [C, W]      bf16, C = 2 nk dk + nv dv: channels of all q, of all k, of all v
//   a_log             [nv] fp32;  dt_bias [nv] and norm_w [dv] bf16
//   a place           S [nv, dk, dv] fp32; inputs [W-1, C], oldest first, the dtype of q
//
// One order of arithmetic for prefills, decodes and chunks, so that a token's bits do not depend on
// the cut or on other rows (P6): all is fp32. The convolution sums ascending from j = 0. The sums
// over dk and over dv for norms run in 16 lanes, element i in lane i mod 16, then a tree. k S and q
// S sum ascending over dk, fused; S' = fma(k_i, delta, decay * S_i). The chunked form of Yang et
// al. does not fit: a token's bits would depend on the chunk's other tokens. The recurrence costs 4
// dk dv multiply-adds per head and token, an eighth of the cost of the products around it.
//
// A GPU has an order of its own, which too is the same for any cut: sums of k S and q S in 4 parts
// (8 if dk > 128), where element i is in part i / 4 mod 4 (8), each ascending and fused, then a
// tree; sums for norms in 32 lanes, element i in lane i mod 32, then a tree. q S is rounded to y's
// dtype before its norm, as in transformers. Tensor cores would need the chunked form, so there is
// no such kernel. A block has 32 (16) columns of a head's S in registers through all of a row's
// tokens: rows, heads and columns run side by side, tokens one after another. Not measured.
//
// Infinities and NaNs of a token, and squares that overflow, become NaN in y and in S. This
// includes infinite b, a and z, whose sigmoid, decay or silu would look finite.
//
// Source: Yang et al. 2024 (arXiv:2412.06464); transformers 5.24, Qwen3NextGatedDeltaNet,
// torch_recurrent_gated_delta_rule.
#pragma once

#include "kernels/tensor.h"

#include <cstddef>
#include <cstdint>

namespace pitstop::kernels {

// The columns of heads in a product's output. The heads form groups, one per key head: head h has
// the `cols` columns that begin at (h / group_len) * group_stride + (h % group_len) * cols.
struct HeadColumns {
    ConstActView first{};           // [T, cols], of head 0
    std::int64_t group_stride = 0;  // elements from a group's first head to the next group's
    std::int64_t group_len = 1;     // heads

    [[nodiscard]] std::int64_t begin_of(std::int64_t head) const {
        return head / group_len * group_stride + head % group_len * first.cols;
    }
};

struct GatedDeltaArgs {
    static constexpr std::int64_t kHeadDimMax = 256;
    static constexpr std::int64_t kKernelMax = 8;
    static constexpr float kNormEps = 1e-6f;  // of queries and keys

    HeadColumns q{};                   // [T, dk]
    HeadColumns k{};                   // [T, dk]
    HeadColumns v{};                   // [T, dv]
    HeadColumns z{};                   // [T, dv]
    HeadColumns b{};                   // [T, 1]
    HeadColumns a{};                   // [T, 1]
    ActView y{};                       // [T, nv*dv]
    std::int64_t num_key_heads = 0;    // nk
    std::int64_t num_value_heads = 0;  // nv, a multiple of nk
    View2<const bf16> conv{};          // [C, W], rows contiguous; 2 <= W <= kKernelMax
    const float* a_log = nullptr;      // [nv]
    const bf16* dt_bias = nullptr;     // [nv]
    const bf16* norm_w = nullptr;      // [dv]
    float norm_eps = 0.f;

    // States and inputs of place 0; those of place i are i * place_bytes later.
    float* states = nullptr;
    void* inputs = nullptr;
    std::int64_t place_bytes = 0;
    std::int64_t num_rows = 0;                // R
    const std::int32_t* q_starts = nullptr;   // [R + 1], ascending from 0 to T
    const std::int32_t* positions = nullptr;  // [T]
    // [R], all different: where a row's state is stored after its last token
    const std::int32_t* places = nullptr;
    // [R]: the place of the state before a row's first token
    const std::int32_t* from_places = nullptr;
    // [R]: an additional place, which gets the state before token saved_ends[r]
    const std::int32_t* saved_places = nullptr;
    // [R]: a token's index; nothing is stored in saved_places[r] unless it is above q_starts[r]
    const std::int32_t* saved_ends = nullptr;
    // [R], or null: places[r] gets the state before token stored_ends[r], in (q_starts[r],
    // q_starts[r + 1]] and not below saved_ends[r]. Null: the state after a row's last token.
    const std::int32_t* stored_ends = nullptr;
    Stream stream{};

    [[nodiscard]] std::int64_t key_dim() const { return q.first.cols; }    // dk
    [[nodiscard]] std::int64_t value_dim() const { return v.first.cols; }  // dv
    [[nodiscard]] std::int64_t num_channels() const {                      // C
        return 2 * num_key_heads * key_dim() + num_value_heads * value_dim();
    }
    [[nodiscard]] float* state_at(std::int32_t place) const {
        return reinterpret_cast<float*>(at_place(states, place));
    }
    [[nodiscard]] std::byte* inputs_at(std::int32_t place) const { return at_place(inputs, place); }
    [[nodiscard]] std::int32_t stored_end(std::int64_t row) const {
        return stored_ends != nullptr ? stored_ends[row] : q_starts[row + 1];
    }

  private:
    [[nodiscard]] std::byte* at_place(void* first, std::int32_t place) const {
        return static_cast<std::byte*>(first) + place * place_bytes;
    }
};

void check(const GatedDeltaArgs& args);
// Stores the last W-1 inputs of a row's convolution with its state, for the next call.
void keep_conv_inputs(const GatedDeltaArgs& args, std::int64_t row);
void gated_delta_ref(const GatedDeltaArgs& args);
void gated_delta_cuda(const GatedDeltaArgs& args);

}  // namespace pitstop::kernels
