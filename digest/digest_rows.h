// Digests a rectangle of a tensor: the part that a shard or a transfer has. The digests of
// rectangles that cover a tensor add up to the tensor's digest.
//
// A rectangle's rows begin and end at words of the tensor, because first_word counts words. Only
// the last rectangle of a tensor's row may end within a word.
#pragma once

#include "digest/digest_run.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace pitstop::digest {

struct DigestRows {
    const std::byte* data = nullptr;
    std::int64_t num_rows = 0;
    std::int64_t row_bytes = 0;         // of the rectangle
    std::int64_t row_stride_bytes = 0;  // distance between rows in memory
    std::uint64_t first_word = 0;       // number of the rectangle's first word in the tensor
    std::uint64_t words_per_row = 0;    // of the tensor, >= digest_words(row_bytes)
    // If not null, the rectangle is copied here on the way. Must not overlap anything else.
    std::byte* copy_to = nullptr;
    std::int64_t copy_stride_bytes = 0;  // distance between rows of the copy
    CopyPath copy_path = CopyPath::kPastCache;

    // Returns the same rectangle as one row, if its rows follow each other in memory and in words.
    [[nodiscard]] DigestRows joined() const;
    // Returns bytes [begin, begin + num_bytes) of row `row`. REQUIRES: a word begins at `begin`.
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

// Returns whole rows of a tensor, `row_bytes` each, back to back, from row `row_begin` on.
// REQUIRES: row_bytes > 0 divides rows.size().
[[nodiscard]] DigestRows whole_rows(
    std::span<const std::byte> rows, std::int64_t row_bytes, std::int64_t row_begin
);

// Digests on the calling thread.
[[nodiscard]] DigestSum digest_of(const DigestRows& rows, AddRun add_run);

}  // namespace pitstop::digest
