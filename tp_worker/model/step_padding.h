// How a GPU's steps of decodes alone are padded with rows that nobody reads, so that few shapes
// occur: each is a graph, and the bits of a step follow from its shape (step_graphs.h). The same
// with graphs and without.
//
// A row of padding has one token that embeds as zeros and a KV of that token alone, in a scratch
// page behind the scheduler's: padding writes where no request reads. The device makes the rows
// (kernels/step_rows.h).
#pragma once

#include <bit>
#include <cstdint>

namespace pitstop::tp_worker {

// Steps of more rows are not padded: the GPU is busy for longer than the host needs.
inline constexpr std::int64_t kPaddedRowsMax = 256;
inline constexpr std::int64_t kPaddingStep = 16;  // rows of a tile of the products

// The rows of a padded step of so many decodes.
[[nodiscard]] constexpr std::int64_t padded_rows(std::int64_t num_rows) {
    if (num_rows <= kPaddingStep)
        return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(num_rows)));
    return (num_rows + kPaddingStep - 1) / kPaddingStep * kPaddingStep;
}

// Pages of KV that padding writes to: each row has a place of its own.
[[nodiscard]] constexpr std::int64_t num_scratch_pages(std::int64_t page_size) {
    return (kPaddingStep - 1 + page_size - 1) / page_size;
}

}  // namespace pitstop::tp_worker
