// A step in the form in which blocks run it: the rows of a batch, and the weights.
#pragma once

#include "base/ids.h"
#include "kernels/low_rank_rows.h"
#include "tp_worker/weights/bound_adapter.h"
#include "tp_worker/weights/bound_weights.h"

#include <cstdint>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

// Consecutive tokens of a step with the same adapter.
struct AdaptedTokens {
    std::int64_t begin = 0;
    std::int64_t num = 0;
    const BoundAdapter* adapter = nullptr;
};

// The place of each row's state in the pool (state_pool.h, kernels/gated_delta.h). Empty for a
// model whose blocks keep no states. Rows of padding are included, with the place -1.
struct StatePlaces {
    std::span<const std::int32_t> places{};        // [R]
    std::span<const std::int32_t> from_places{};   // [R]
    std::span<const std::int32_t> saved_places{};  // [R]
    std::span<const std::int32_t> saved_ends{};    // [R]
    std::span<const std::int32_t> stored_ends{};   // [R]; empty: each row's end
};

// A step, ready to run: R rows with T tokens in total. The caller has checked the ranges
// (model/step_batch.h).
struct StepBatch {
    std::span<const TokenId> tokens{};            // [T], ids or slots of `sampled`
    const TokenId* sampled = nullptr;             // in the device's memory (kernels/embedding.h)
    std::span<const std::int32_t> positions{};    // [T]
    std::span<const std::int64_t> kv_slots{};     // [T], page * P + offset
    std::span<const std::int32_t> q_starts{};     // [R + 1]
    std::span<const std::int32_t> kv_lens{};      // [R], new tokens included
    std::span<const std::int32_t> page_starts{};  // [R]
    std::span<const PageId> pages{};
    std::span<const SlotId> slots{};  // [R], the rows' requests
    StatePlaces states{};
    // With states: the draft tokens, for which the blocks keep the inputs of the recurrence. In a
    // replay (model/draft_replay.h): the indices of the kept inputs to apply.
    std::span<const std::int32_t> drafted_rows{};  // [N]
    // For a step of decodes on a GPU: R including rows of padding (model/step_padding.h). Before
    // place() no array contains those rows. 0: any other step, or one on a CPU.
    std::int64_t num_padded = 0;
    // [L]: the tokens that need logits, in order, of a small step with prompts (step_padding.h).
    // Such a step pads all arrays except `slots`. Empty for any other step.
    std::span<const std::int32_t> token_rows{};
    std::int32_t kv_len_max = 0;
    std::int32_t q_len_max = 0;  // new tokens of a row; 0: unknown
    // Set by place() on a GPU: the changes to the device's pages and rows (model/step_updates.h).
    std::span<const std::int32_t> update{};
    // [T], or empty: 1 if a token's hidden state before the last block has infinities or NaNs, else
    // 0. Any such value in the KV or state that blocks keep for the token also gives 1
    // (kernels/KERNELS.md). A step of padded decodes has no marks: all its tokens have logits,
    // whose non-finite values show the same.
    std::span<std::uint8_t> marks{};
    // The tokens with an adapter, on a CPU: ascending ranges without overlaps. Empty: none.
    std::span<const AdaptedTokens> adapted{};
    // [T], padding included, on a GPU: each token's adapter, null: none. Empty: no token has one.
    std::span<const kernels::LowRankPair* const> adapter_tables{};

    // The tokens whose expert ids come with the step, by index in the step, and those ids: a row of
    // `brought_row_bytes` bytes per token (kernels/router.h). A padded step has none.
    std::span<const std::int32_t> brought_rows{};  // [N]
    std::span<const std::uint8_t> brought{};       // [N, layers, k]
    std::int64_t brought_row_bytes = 0;

    [[nodiscard]] bool has_adapters() const { return !adapted.empty() || !adapter_tables.empty(); }
    [[nodiscard]] std::int64_t num_tokens() const {
        return static_cast<std::int64_t>(tokens.size());
    }
};

// A pass over the blocks.
struct Pass {
    const StepBatch& batch;  // placed
    const BoundWeights& weights;
    // Whether the previous block's output is in the trunk's delta, and not yet added to x.
    bool lacks_delta = false;
    std::uint8_t* marks = nullptr;  // [T]: StepBatch's marks; null for all blocks but the last
    // The adapters' terms of the current product, rebuilt for each product. The vector outlives the
    // products, so that its memory is reused.
    std::vector<kernels::LowRankSegment>* segments = nullptr;
};

}  // namespace pitstop::tp_worker
