#include "client/tensor_digest.h"

#include <algorithm>
#include <cstring>

namespace pitstop {

Digest digest_rows(
    std::span<const std::byte> rows, std::int64_t row_bytes, std::int64_t row_begin
) {
    constexpr std::size_t kWordBytes = 8;
    Digest sum;
    if (row_bytes == 0) return sum;
    const auto size = static_cast<std::size_t>(row_bytes);
    const std::uint64_t words_per_row = digest_words(row_bytes);
    for (std::size_t begin = 0; begin < rows.size(); begin += size) {
        const std::uint64_t row = static_cast<std::uint64_t>(row_begin) + begin / size;
        std::uint64_t step = (row * words_per_row + 1) * kDigestStep;
        std::uint64_t lane0 = 0;
        std::uint64_t lane1 = 0;
        for (std::size_t at = 0; at < size; at += kWordBytes, step += kDigestStep) {
            std::uint64_t word = 0;  // the last one of a row is padded with zeros
            std::memcpy(&word, rows.data() + begin + at, std::min(kWordBytes, size - at));
            const std::uint64_t h = mix64(word + step);
            lane0 += h;
            lane1 += (h >> 32) * (h & 0xffffffffu);
        }
        sum.lane0 += lane0;
        sum.lane1 += lane1;
    }
    return sum;
}

}  // namespace pitstop
