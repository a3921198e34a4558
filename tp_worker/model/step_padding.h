// Says how a GPU's steps are padded with what nobody reads, so that few shapes occur: each is a
// graph, and the bits of a step follow from its shape (step_graphs.h). It is the same with graphs
// and without.
//
// In steps of decodes alone a row of padding has one token that embeds as zeros and a KV of that
// token alone, in a scratch page behind the scheduler's: padding writes where no request reads. The
// device makes the rows (kernels/step_rows.h).
//
// Small steps with prompts among their rows have one more row for the tokens of padding, behind the
// requests' rows; rows after it have no tokens. The host makes them, among what such a step brings
// (step_batch.h).
#pragma once

#include <bit>
#include <cstdint>

namespace pitstop::tp_worker {

// Steps of more rows are not padded: the GPU is busy for longer than the host needs.
inline constexpr std::int64_t kPaddedRowsMax = 256;
inline constexpr std::int64_t kPaddingStep = 16;  // rows of a tile of the products

// A step with prompts is padded up to so many tokens: beyond, the GPU is busy for longer than the
// host needs.
inline constexpr std::int64_t kPaddedTokensMax = 256;
inline constexpr std::int64_t kPaddingTokenStep = 32;

// Returns the rows of a padded step of so many decodes.
[[nodiscard]] constexpr std::int64_t padded_rows(std::int64_t num_rows) {
    if (num_rows <= kPaddingStep)
        return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(num_rows)));
    return (num_rows + kPaddingStep - 1) / kPaddingStep * kPaddingStep;
}

// Returns the tokens of a padded step with prompts.
[[nodiscard]] constexpr std::int64_t padded_tokens(std::int64_t num_tokens) {
    return (num_tokens + kPaddingTokenStep - 1) / kPaddingTokenStep * kPaddingTokenStep;
}
// Returns its rows without the one of padding, and its rows of logits: powers of two, so that few
// go with each number of tokens.
[[nodiscard]] constexpr std::int64_t padded_prompt_rows(std::int64_t num_rows) {
    constexpr std::int64_t kLeast = 8;
    if (num_rows <= kLeast) return kLeast;
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(num_rows)));
}

// Counts the pages of KV that padding writes to: each of its tokens has a place of its own.
[[nodiscard]] constexpr std::int64_t num_scratch_pages(std::int64_t page_size) {
    static_assert(kPaddingTokenStep >= kPaddingStep);
    return (kPaddingTokenStep - 1 + page_size - 1) / page_size;
}

}  // namespace pitstop::tp_worker
