#include "kernels/digest.h"

#include "tests/kernels/support.h"
#include "tests/source_dir.h"

#include <nlohmann/json.hpp>

#include <bit>
#include <cmath>
#include <fstream>
#include <random>

namespace pitstop::kernels::test {
namespace {

std::vector<std::uint8_t> pattern(std::int64_t size) {  // as digest_reference.py
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<std::uint8_t>(i * 131 + i / 251 + 7);
    return bytes;
}

Digest digest_of(
    const Ops& ops, const std::vector<std::uint8_t>& bytes, std::int64_t rows, Stream stream
) {
    const std::int64_t row_bytes = static_cast<std::int64_t>(bytes.size()) / rows;
    Digest sum;
    ops.digest({
        .data = bytes.data(),
        .rows = rows,
        .row_bytes = row_bytes,
        .row_stride_bytes = row_bytes,
        .words_per_row = digest_words(row_bytes),
        .sum = &sum,
        .stream = stream,
    });
    return sum;
}

class DigestOp : public OnLevel {};
PITSTOP_ON_EVERY_LEVEL(DigestOp);

TEST_P(DigestOp, GivesTheVectorsThatNumpyGave) {
    std::ifstream file(source_dir() + "/tests/digest/digest_vectors.json");
    const nlohmann::json vectors = nlohmann::json::parse(file);
    ASSERT_GE(vectors.size(), 16u);
    for (const auto& vector : vectors) {
        SCOPED_TRACE(vector.dump());
        const std::int64_t rows = vector["rows"];
        const std::int64_t size = rows * vector["row_bytes"].get<std::int64_t>();
        const std::vector<std::uint8_t> bytes =
            vector["data"] == "zero" ? std::vector<std::uint8_t>(static_cast<std::size_t>(size))
                                     : pattern(size);
        const Digest expected{
            .lane0 = std::stoull(vector["lane0"].get<std::string>(), nullptr, 16),
            .lane1 = std::stoull(vector["lane1"].get<std::string>(), nullptr, 16),
        };
        EXPECT_EQ(digest_of(*reference_ops(), bytes, rows, {}), expected);
        EXPECT_EQ(digest_of(ops(), bytes, rows, stream_of(pool_)), expected);
    }
}

// SplitMix64 from seed 0 (Vigna's splitmix64.c) starts with these: independent of all our code.
TEST(Digest, OfZerosIsSplitMix64) {
    const std::uint64_t sequence[] = {
        0xe220a8397b1dcdafu, 0x6e789e6aa1b965f4u, 0x06c45d188009454fu};
    std::uint64_t sum = 0;
    for (std::int64_t words = 1; words <= 3; ++words) {
        sum += sequence[words - 1];
        EXPECT_EQ(
            digest_of(
                *reference_ops(),
                std::vector<std::uint8_t>(static_cast<std::size_t>(words) * 8),
                1,
                {}
            )
                .lane0,
            sum
        );
    }
}

// A [23, 1042-byte] tensor is cut into random rectangles, in any order, at any address.
TEST_P(DigestOp, ShardsAddUpToTheTensor) {
    constexpr std::int64_t kRows = 23;
    constexpr std::int64_t kRowBytes = 1042;  // the last word of a row has two bytes
    const std::vector<std::uint8_t> bytes = pattern(kRows * kRowBytes);
    const Digest whole = digest_of(*reference_ops(), bytes, kRows, {});
    std::mt19937 engine(4);
    for (int round = 0; round < 30; ++round) {
        std::vector<std::int64_t> row_cuts = {0, kRows}, word_cuts = {0, 131};
        for (int cut = 0; cut < 3; ++cut) {
            row_cuts.push_back(static_cast<std::int64_t>(engine() % kRows));
            word_cuts.push_back(static_cast<std::int64_t>(engine() % 131));
        }
        std::sort(row_cuts.begin(), row_cuts.end());
        std::sort(word_cuts.begin(), word_cuts.end());
        Digest sum;
        for (std::size_t i = row_cuts.size() - 1; i > 0; --i) {
            for (std::size_t j = 1; j < word_cuts.size(); ++j) {
                const std::int64_t begin = word_cuts[j - 1] * 8;
                const std::int64_t end = std::min(word_cuts[j] * 8, kRowBytes);
                std::vector<std::uint8_t> shard(1);  // contiguous and off alignment
                for (std::int64_t r = row_cuts[i - 1]; r < row_cuts[i]; ++r) {
                    shard.insert(
                        shard.end(),
                        bytes.begin() + r * kRowBytes + begin,
                        bytes.begin() + r * kRowBytes + end
                    );
                }
                ops().digest({
                    .data = shard.data() + 1,
                    .rows = row_cuts[i] - row_cuts[i - 1],
                    .row_bytes = end - begin,
                    .row_stride_bytes = end - begin,
                    .first_word =
                        static_cast<std::uint64_t>(row_cuts[i - 1] * 131 + word_cuts[j - 1]),
                    .words_per_row = 131,
                    .sum = &sum,
                    .stream = stream_of(pool_),
                });
            }
        }
        ASSERT_EQ(sum, whole);
    }
}

TEST_P(DigestOp, AnySingleBitChangesBothLanes) {
    std::vector<std::uint8_t> bytes = pattern(512);
    const Digest before = digest_of(ops(), bytes, 2, {});
    for (std::size_t bit = 0; bit < 512 * 8; bit += 37) {
        bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
        const Digest after = digest_of(ops(), bytes, 2, {});
        EXPECT_NE(after.lane0, before.lane0);
        EXPECT_NE(after.lane1, before.lane1);
        bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
    }
}

TEST_P(DigestOp, AWideRowIsTheSameOnOneThreadAndOnMany) {
    const std::vector<std::uint8_t> bytes = pattern(3 << 20);
    EXPECT_EQ(
        digest_of(ops(), bytes, 1, stream_of(pool_)), digest_of(*reference_ops(), bytes, 1, {})
    );
}

// Every bf16 there is, at every place in a word, in rows whose last word is not full.
TEST_P(DigestOp, CountsInfinitiesAndNans) {
    std::vector<std::uint16_t> all(1 << 16);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    std::mt19937 engine(7);
    std::shuffle(all.begin(), all.end(), engine);
    for (const std::int64_t cols : {1, 3, 4, 7, 130, 1 << 16}) {
        const std::int64_t rows = (1 << 16) / cols;
        std::uint64_t expected = 100;
        for (std::int64_t i = 0; i < rows * cols; ++i) {
            const std::uint32_t bits = all[static_cast<std::size_t>(i)];
            if (!std::isfinite(std::bit_cast<float>(bits << 16))) ++expected;
        }
        for (const Ops* ops : {reference_ops(), &this->ops()}) {
            Digest sum;
            std::uint64_t num = 100;
            ops->digest({
                .data = all.data(),
                .rows = rows,
                .row_bytes = cols * 2,
                .row_stride_bytes = cols * 2,
                .words_per_row = digest_words(cols * 2),
                .sum = &sum,
                .num_nonfinite = &num,
                .stream = stream_of(pool_),
            });
            EXPECT_EQ(num, expected) << ops->name << ", " << cols << " columns";
        }
    }
}

TEST_P(DigestOp, NothingAddsNothing) {
    Digest sum{.lane0 = 5, .lane1 = 6};
    ops().digest({.data = nullptr, .rows = 0, .row_bytes = 0, .sum = &sum});
    EXPECT_EQ(sum, (Digest{.lane0 = 5, .lane1 = 6}));
}

}  // namespace
}  // namespace pitstop::kernels::test
