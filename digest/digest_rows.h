// Digests a rectangle of a tensor: what a shard or a transfer has of it. The digests of rectangles
// that cover a tensor add up to its digest.
//
// The cut of a row must fall on a word: first_word counts words. A row that ends the tensor's row
// may have any number of bytes.
#pragma once

#include "digest/digest_run.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace pitstop::digest {

struct DigestRows {
    const std::byte* data = nullptr;
    std::int64_t num_rows = 0;
    std::int64_t row_bytes = 0;         // the rectangle's
    std::int64_t row_stride_bytes = 0;  // from row to row in memory
    std::uint64_t first_word = 0;       // number of the rectangle's first word in the tensor
    std::uint64_t words_per_row = 0;    // the tensor's, >= digest_words(row_bytes)
    // The rectangle is copied here on the way, unless this is null. It overlaps nothing.
    std::byte* copy_to = nullptr;
    std::int64_t copy_stride_bytes = 0;  // from row to row there
    CopyPath copy_path = CopyPath::kPastCache;

    // Returns the same as one row, where its rows follow each other in memory and in words.
    [[nodiscard]] DigestRows joined() const;
    // Returns bytes [begin, begin + num_bytes) of row `row`. REQUIRES: begin is a word's.
    [[nodiscard]] DigestRun run(std::int64_t row, std::int64_t begin, std::int64_t num_bytes)
        const {
        return {
            .data = data + row * row_stride_bytes + begin,
            .num_bytes = num_bytes,
            .first_word = first_word + static_cast<std::uint64_t>(row) * words_per_row +
                          static_cast<std::uint64_t>(begin / kDigestWordBytes),
            .copy_to = copy_to == nullptr ? nullptr : copy_to + row * copy_stride_bytes + begin,
            .copy_path = copy_path,
        };
    }
};

// Describes whole rows of a tensor, `row_bytes` each, back to back; the first is row `row_begin`.
// REQUIRES: row_bytes > 0 divides rows.size().
[[nodiscard]] DigestRows whole_rows(
    std::span<const std::byte> rows, std::int64_t row_bytes, std::int64_t row_begin
);

// Digests on this thread.
[[nodiscard]] DigestSum digest_of(const DigestRows& rows, AddRun add_run);

}  // namespace pitstop::digest
