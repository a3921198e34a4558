#include "digest/digest_rows.h"

#include "base/check.h"

namespace pitstop::digest {

DigestRows DigestRows::joined() const {
    const bool are_joined = row_stride_bytes == row_bytes && row_bytes % kDigestWordBytes == 0 &&
                            words_per_row == digest_words(row_bytes) &&
                            (copy_to == nullptr || copy_stride_bytes == row_bytes);
    if (num_rows == 1 || !are_joined) return *this;
    DigestRows row = *this;
    row.row_bytes *= num_rows;
    row.row_stride_bytes = row.row_bytes;
    row.copy_stride_bytes = row.row_bytes;
    row.words_per_row = digest_words(row.row_bytes);
    row.num_rows = 1;
    return row;
}

DigestRows whole_rows(
    std::span<const std::byte> rows, std::int64_t row_bytes, std::int64_t row_begin
) {
    CHECK(row_bytes > 0 && rows.size() % static_cast<std::size_t>(row_bytes) == 0);
    const std::uint64_t words_per_row = digest_words(row_bytes);
    return {
        .data = rows.data(),
        .num_rows = static_cast<std::int64_t>(rows.size()) / row_bytes,
        .row_bytes = row_bytes,
        .row_stride_bytes = row_bytes,
        .first_word = static_cast<std::uint64_t>(row_begin) * words_per_row,
        .words_per_row = words_per_row,
    };
}

DigestSum digest_of(const DigestRows& rows, AddRun add_run) {
    const DigestRows joined = rows.joined();
    DigestSum sum;
    for (std::int64_t row = 0; row < joined.num_rows; ++row)
        add_run(joined.run(row, 0, joined.row_bytes), sum);
    return sum;
}

}  // namespace pitstop::digest
