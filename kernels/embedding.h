// The token embedding, vocabulary-parallel:
//   y[t, :] = table[ids[t] - vocab_begin, :]   if this rank has the id, else zeros,
// so that the sum over the ranks, exact in any order, is the embedding.
//
//   ids    [T]           int32; any value: an id of no rank gives zeros everywhere. With `sampled`,
//                        sampled_in(slot) means the value of sampled[slot] when the op runs.
//                        So a step may be enqueued before the host knows what the last step
//                        drew
//   table  [V_rank, H]   bf16: rows vocab_begin .. vocab_begin + V_rank of the whole table
//   y      [T, H]        fp32 (the residual stream)
#pragma once

#include "base/ids.h"
#include "kernels/tensor.h"

namespace pitstop::kernels {

[[nodiscard]] constexpr TokenId sampled_in(std::int64_t slot) {
    return static_cast<TokenId>(static_cast<std::int32_t>(-2 - slot));
}
// Returns the id that `given`, an element of ids, stands for.
[[nodiscard]] constexpr TokenId id_of(TokenId given, const TokenId* sampled) {
    return sampled != nullptr && raw(given) < -1 ? sampled[-2 - std::int64_t{raw(given)}] : given;
}

struct EmbeddingArgs {
    const TokenId* ids = nullptr;      // [y.rows]
    const TokenId* sampled = nullptr;  // [slots]; null if ids are plain ids
    View2<const bf16> table{};         // [V_rank, H]
    std::int64_t vocab_begin = 0;      // number of table row 0 in the whole vocabulary
    View2<float> y{};                  // [T, H]
    Stream stream{};
};

void check(const EmbeddingArgs& args);
void embedding_ref(const EmbeddingArgs& args);
void embedding_cuda(const EmbeddingArgs& args);

}  // namespace pitstop::kernels
