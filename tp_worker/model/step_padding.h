// How a GPU's steps are padded with unused tokens, so that few shapes occur: each shape has a
// graph, and a step's bits depend on its shape (step_graphs.h). Steps without graphs are padded in
// the same way.
//
// In steps with only decodes, a row of padding has one token that embeds as zeros. Its KV is that
// token's alone, in a scratch page, which follows the scheduler's pages and which no request reads.
// The device makes the rows (kernels/step_rows.h).
//
// Small steps with prompts or drafts have one more row for the tokens of padding, after the
// requests' rows; rows after it have no tokens. The host makes them, with the other inputs of such
// a step (step_batch.h). Steps with drafts are NOT MEASURED on a device.
#pragma once

#include <bit>
#include <cstdint>

namespace pitstop::tp_worker {

// Steps with more rows are not padded: the GPU is busy for longer than the host needs.
inline constexpr std::int64_t kPaddedRowsMax = 256;
inline constexpr std::int64_t kPaddingStep = 16;  // rows of a tile of the products

// A step with prompts is padded up to this many tokens: beyond, the GPU is busy for longer than the
// host needs.
inline constexpr std::int64_t kPaddedTokensMax = 256;
inline constexpr std::int64_t kPaddingTokenStep = 32;

// Returns the rows of a padded step with this many decodes.
[[nodiscard]] constexpr std::int64_t padded_rows(std::int64_t num_rows) {
    if (num_rows <= kPaddingStep)
        return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(num_rows)));
    return (num_rows + kPaddingStep - 1) / kPaddingStep * kPaddingStep;
}

// Returns the tokens of a padded step with prompts.
[[nodiscard]] constexpr std::int64_t padded_tokens(std::int64_t num_tokens) {
    return (num_tokens + kPaddingTokenStep - 1) / kPaddingTokenStep * kPaddingTokenStep;
}
// Returns the number of rows of a padded step with prompts, without the row of padding. The step
// has as many rows of logits. The number is a power of two, so that few numbers occur. `num_rows`:
// the step's rows or its rows of logits, whichever are more.
[[nodiscard]] constexpr std::int64_t padded_prompt_rows(std::int64_t num_rows) {
    constexpr std::int64_t kLeast = 8;
    if (num_rows <= kLeast) return kLeast;
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(num_rows)));
}

// Returns how many pages of KV padding writes to: each of its tokens has a place of its own.
[[nodiscard]] constexpr std::int64_t num_scratch_pages(std::int64_t page_size) {
    static_assert(kPaddingTokenStep >= kPaddingStep);
    return (kPaddingTokenStep - 1 + page_size - 1) / page_size;
}

}  // namespace pitstop::tp_worker
