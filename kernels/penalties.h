// Applies penalties, bias and masks to a step's logits, in place, for each id of a row in this
// order:
//   repetition  l = l > 0 ? l / repetition : l * repetition     ids in the prompt or the output
//   frequency   l -= frequency * num_output                      num_output: times in the output
//   presence    l -= presence                                    if num_output > 0
//   bias        l += bias
//   mask        l = -inf                                          if the row's mask has a 0 for
//                                                                the id
// Source: Keskar et al. 2019 (arXiv:1909.05858) for repetition; the OpenAI API for the others.
//
//   logits  [R, V_rank]  fp32, ids vocab_begin .. vocab_begin + V_rank. Entries with
//                        ids outside are skipped, so that every rank can get
//                        the same lists
//   counts  row r's at counts[count_starts[r] .. count_starts[r+1]): one entry per distinct id of
//           the prompt and output; none if the row has no penalty
//   biases  the same layout; each id once. A bias of -inf bans an id (stop ids
//           before min_new_tokens)
//   masks   [num_masks][mask_words]: bit i of word w is for id 32 w + i of the whole vocabulary;
//           mask_of[r] is the mask of row r, or -1
#pragma once

#include "base/ids.h"
#include "kernels/tensor.h"

namespace pitstop::kernels {

struct TokenCount {
    TokenId id{};
    std::int32_t num_output = 0;  // 0: in the prompt only
};

struct LogitBias {
    TokenId id{};
    float bias = 0.f;
};

struct PenaltyRow {
    float repetition = 1.f;  // > 0; 1: off
    float frequency = 0.f;
    float presence = 0.f;
};

struct PenaltyArgs {
    View2<float> logits{};  // [R, V_rank]
    std::int64_t vocab_begin = 0;
    const PenaltyRow* rows = nullptr;            // [R]
    const std::int32_t* count_starts = nullptr;  // [R + 1], ascending from 0
    const TokenCount* counts = nullptr;
    const std::int32_t* bias_starts = nullptr;  // [R + 1], ascending from 0
    const LogitBias* biases = nullptr;
    const std::int32_t* mask_of = nullptr;  // [R]; null: no row has a mask
    const std::uint32_t* masks = nullptr;
    std::int64_t mask_words = 0;  // of each mask; they cover vocab_begin + V_rank ids
    Stream stream{};
};

void check(const PenaltyArgs& args);
void penalties_ref(const PenaltyArgs& args);
void penalties_cuda(const PenaltyArgs& args);

}  // namespace pitstop::kernels
