#include "kernels/digest.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace pitstop {

static_assert(std::endian::native == std::endian::little);

void check(const DigestArgs& args) {
    CHECK(args.rows >= 0 && args.row_bytes >= 0 && args.sum != nullptr);
    if (args.rows == 0 || args.row_bytes == 0) return;
    CHECK(args.data != nullptr);
    CHECK(args.rows == 1 || args.row_stride_bytes >= args.row_bytes);
    CHECK(args.words_per_row >= digest_words(args.row_bytes));
}

void digest_ref(const DigestArgs& args) {
    check(args);
    for (std::int64_t r = 0; r < args.rows; ++r) {
        const auto* const bytes =
            static_cast<const std::byte*>(args.data) + r * args.row_stride_bytes;
        for (std::int64_t begin = 0; begin < args.row_bytes; begin += 8) {
            std::uint64_t word = 0;
            std::memcpy(
                &word,
                bytes + begin,
                static_cast<std::size_t>(std::min<std::int64_t>(8, args.row_bytes - begin))
            );
            const std::uint64_t i = args.first_word +
                                    static_cast<std::uint64_t>(r) * args.words_per_row +
                                    static_cast<std::uint64_t>(begin / 8);
            const std::uint64_t h = mix64(word + (i + 1) * kDigestStep);
            if (args.num_nonfinite != nullptr)
                *args.num_nonfinite +=
                    static_cast<std::uint64_t>(std::popcount(nonfinite_bits(word)));
            *args.sum += Digest{.lane0 = h, .lane1 = (h >> 32) * (h & 0xffffffffu)};
        }
    }
}

}  // namespace pitstop
