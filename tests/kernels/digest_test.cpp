#include "kernels/digest.h"

#include "tests/kernels/backend.h"
#include "tests/source_dir.h"

#include <nlohmann/json.hpp>

#include <bit>
#include <cmath>
#include <fstream>
#include <random>

namespace pitstop::kernels::test {
namespace {

std::vector<std::uint8_t> pattern(std::int64_t size) {  // as in digest_reference.py
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<std::uint8_t>(i * 131 + i / 251 + 7);
    return bytes;
}

Digest reference_of(const std::vector<std::uint8_t>& bytes, std::int64_t rows) {
    const std::int64_t row_bytes = static_cast<std::int64_t>(bytes.size()) / rows;
    Digest sum;
    digest_ref(
        {.data = bytes.data(),
         .rows = rows,
         .row_bytes = row_bytes,
         .row_stride_bytes = row_bytes,
         .words_per_row = digest_words(row_bytes),
         .sum = &sum}
    );
    return sum;
}

class DigestOp : public OnBackend {
  protected:
    Digest digest_of(
        const std::vector<std::uint8_t>& bytes, std::int64_t rows, Stream stream, int blocks_max = 0
    ) {
        const std::int64_t row_bytes = static_cast<std::int64_t>(bytes.size()) / rows;
        const auto there = put(bytes);
        const auto sum = put(std::vector<Digest>{{}});
        ops().digest(
            {.data = there.data(),
             .rows = rows,
             .row_bytes = row_bytes,
             .row_stride_bytes = row_bytes,
             .words_per_row = digest_words(row_bytes),
             .sum = sum.data(),
             .blocks_max = blocks_max,
             .stream = stream}
        );
        return sum.fetch()[0];
    }

    // Digests a rectangle that starts `shift` bytes into its memory, and compares with the
    // reference.
    void expect_reference(
        std::int64_t rows, std::int64_t row_bytes, std::int64_t stride, std::int64_t shift
    ) {
        SCOPED_TRACE(
            testing::Message() << rows << " rows of " << row_bytes << " bytes, stride " << stride
                               << ", from byte " << shift
        );
        std::vector<std::uint8_t> bytes(
            static_cast<std::size_t>((rows - 1) * stride + row_bytes + shift)
        );
        std::mt19937 engine(static_cast<unsigned>(rows * 1000 + row_bytes));
        for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(engine());
        const auto device_bytes = put(bytes);
        Digest expected{.lane0 = 5, .lane1 = 7};
        const auto sum = put(std::vector<Digest>{expected});
        std::uint64_t expected_nonfinite = 3;
        const auto num_nonfinite = put(std::vector<std::uint64_t>{expected_nonfinite});
        DigestArgs args{
            .data = bytes.data() + shift,
            .rows = rows,
            .row_bytes = row_bytes,
            .row_stride_bytes = stride,
            .first_word = 11,
            .words_per_row = digest_words(row_bytes) + 3,
            .sum = &expected,
            .num_nonfinite = &expected_nonfinite};
        digest_ref(args);
        args.data = device_bytes.data() + shift;
        args.sum = sum.data();
        args.num_nonfinite = num_nonfinite.data();
        args.stream = stream();
        ops().digest(args);
        EXPECT_EQ(sum.fetch()[0], expected);
        EXPECT_EQ(num_nonfinite.fetch()[0], expected_nonfinite);
    }
};
PITSTOP_ON_BACKENDS(DigestOp, Order::kDefault);

TEST_P(DigestOp, IsTheReferencesForAnyShapeAndAddress) {
    for (const std::int64_t row_bytes : {1, 7, 8, 9, 15, 16, 17, 31, 32, 48, 100, 4096, 40000}) {
        for (const std::int64_t rows : {1, 2, 5}) {
            expect_reference(rows, row_bytes, row_bytes, 0);
            expect_reference(rows, row_bytes, row_bytes + 3, 0);
            expect_reference(rows, row_bytes, (row_bytes + 31) / 16 * 16, 0);
            for (const std::int64_t shift : {1, 2, 3, 4, 8})
                expect_reference(rows, row_bytes, row_bytes + 8, shift);
        }
    }
    expect_reference(1000, 34, 34, 2);
}

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
        EXPECT_EQ(reference_of(bytes, rows), expected);
        EXPECT_EQ(digest_of(bytes, rows, stream()), expected);
    }
}

// A [23, 1042-byte] tensor is cut into random rectangles, in any order, at any address.
TEST_P(DigestOp, ShardsAddUpToTheTensor) {
    constexpr std::int64_t kRows = 23;
    constexpr std::int64_t kRowBytes = 1042;  // the last word of a row has two bytes
    const std::vector<std::uint8_t> bytes = pattern(kRows * kRowBytes);
    const Digest whole = reference_of(bytes, kRows);
    std::mt19937 engine(4);
    for (int round = 0; round < 30; ++round) {
        std::vector<std::int64_t> row_cuts = {0, kRows}, word_cuts = {0, 131};
        for (int cut = 0; cut < 3; ++cut) {
            row_cuts.push_back(static_cast<std::int64_t>(engine() % kRows));
            word_cuts.push_back(static_cast<std::int64_t>(engine() % 131));
        }
        std::sort(row_cuts.begin(), row_cuts.end());
        std::sort(word_cuts.begin(), word_cuts.end());
        const auto sum = put(std::vector<Digest>{{}});
        for (std::size_t i = row_cuts.size() - 1; i > 0; --i) {
            for (std::size_t j = 1; j < word_cuts.size(); ++j) {
                const std::int64_t begin = word_cuts[j - 1] * 8;
                const std::int64_t end = std::min(word_cuts[j] * 8, kRowBytes);
                std::vector<std::uint8_t> shard(1);  // the shard's bytes begin at an odd address
                for (std::int64_t r = row_cuts[i - 1]; r < row_cuts[i]; ++r) {
                    shard.insert(
                        shard.end(),
                        bytes.begin() + r * kRowBytes + begin,
                        bytes.begin() + r * kRowBytes + end
                    );
                }
                const auto there = put(shard);
                ops().digest({
                    .data = there.data() + 1,
                    .rows = row_cuts[i] - row_cuts[i - 1],
                    .row_bytes = end - begin,
                    .row_stride_bytes = end - begin,
                    .first_word =
                        static_cast<std::uint64_t>(row_cuts[i - 1] * 131 + word_cuts[j - 1]),
                    .words_per_row = 131,
                    .sum = sum.data(),
                    .stream = stream(),
                });
            }
        }
        ASSERT_EQ(sum.fetch()[0], whole);
    }
}

TEST_P(DigestOp, AnySingleBitChangesBothLanes) {
    std::vector<std::uint8_t> bytes = pattern(512);
    const Digest before = digest_of(bytes, 2, one_thread());
    for (std::size_t bit = 0; bit < 512 * 8; bit += 37) {
        bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
        const Digest after = digest_of(bytes, 2, one_thread());
        EXPECT_NE(after.lane0, before.lane0);
        EXPECT_NE(after.lane1, before.lane1);
        bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
    }
}

TEST_P(DigestOp, AWideRowIsTheSameOnOneThreadAndOnMany) {
    const std::vector<std::uint8_t> bytes = pattern(3 << 20);
    EXPECT_EQ(digest_of(bytes, 1, stream()), reference_of(bytes, 1));
}

TEST_P(DigestOp, BlocksThatTakeTilesInTurnLeaveNoneOut) {
    const std::vector<std::uint8_t> bytes =
        pattern(5 * (32 << 10) + 40);  // more tiles than blocks; the last tile is not full
    const Digest expected = reference_of(bytes, 1);
    for (const int blocks : {1, 2, 4, 100})
        EXPECT_EQ(digest_of(bytes, 1, stream(), blocks), expected) << blocks << " blocks";
}

// Every bf16, at every place in a word, in rows whose last word is not full.
TEST_P(DigestOp, CountsInfinitiesAndNans) {
    std::vector<std::uint16_t> all(1 << 16);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    std::mt19937 engine(7);
    std::shuffle(all.begin(), all.end(), engine);
    const auto there = put(all);
    for (const std::int64_t cols : {1, 3, 4, 7, 130, 1 << 16}) {
        const std::int64_t rows = (1 << 16) / cols;
        std::uint64_t expected = 100;
        for (std::int64_t i = 0; i < rows * cols; ++i) {
            const std::uint32_t bits = all[static_cast<std::size_t>(i)];
            if (!std::isfinite(std::bit_cast<float>(bits << 16))) ++expected;
        }
        Digest sum_ref;
        std::uint64_t num_ref = 100;
        DigestArgs args{
            .data = all.data(),
            .rows = rows,
            .row_bytes = cols * 2,
            .row_stride_bytes = cols * 2,
            .words_per_row = digest_words(cols * 2),
            .sum = &sum_ref,
            .num_nonfinite = &num_ref};
        digest_ref(args);
        EXPECT_EQ(num_ref, expected) << cols << " columns";
        const auto sum = put(std::vector<Digest>{{}});
        const auto num = put(std::vector<std::uint64_t>{100});
        args.data = there.data();
        args.sum = sum.data();
        args.num_nonfinite = num.data();
        args.stream = stream();
        ops().digest(args);
        EXPECT_EQ(num.fetch()[0], expected) << cols << " columns";
    }
}

TEST_P(DigestOp, NothingAddsNothing) {
    const Digest before{.lane0 = 5, .lane1 = 6};
    const auto sum = put(std::vector<Digest>{before});
    ops().digest({.data = nullptr, .rows = 0, .row_bytes = 0, .sum = sum.data(), .stream = stream()}
    );
    EXPECT_EQ(sum.fetch()[0], before);
}

}  // namespace
}  // namespace pitstop::kernels::test
