// Computes the token embedding, vocabulary-parallel:
//   y[t, :] = table[ids[t] - vocab_begin, :]   where this rank holds the id, else zeros,
// so that the sum over the ranks, exact in any order, is the embedding.
//
//   ids    [T]           int32; any value: an id of no rank gives zeros everywhere
//   table  [V_rank, H]   bf16: rows vocab_begin .. vocab_begin + V_rank of the whole table
//   y      [T, H]        fp32 (the residual stream)
#pragma once

#include "base/ids.h"
#include "kernels/tensor.h"

namespace pitstop::kernels {

struct EmbeddingArgs {
    const TokenId* ids = nullptr;  // [y.rows]
    View2<const bf16> table{};     // [V_rank, H]
    std::int64_t vocab_begin = 0;  // the whole vocabulary's number of table row 0
    View2<float> y{};              // [T, H]
    Stream stream{};
};

void check(const EmbeddingArgs& args);
void embedding_ref(const EmbeddingArgs& args);
void embedding_cuda(const EmbeddingArgs& args);

}  // namespace pitstop::kernels
