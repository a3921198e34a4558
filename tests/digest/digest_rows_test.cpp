#include "digest/digest_rows.h"

#include "base/isa.h"
#include "tests/source_dir.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace pitstop::digest::test {
namespace {

std::vector<std::byte> pattern(std::int64_t size) {  // as in digest_reference.py
    std::vector<std::byte> bytes(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<std::byte>(i * 131 + i / 251 + 7);
    return bytes;
}

// Implements the definition in base/digest.h word by word.
DigestSum by_definition(const DigestRun& run) {
    DigestSum sum;
    for (std::int64_t begin = 0; begin < run.num_bytes; begin += 8) {
        const std::int64_t num = std::min<std::int64_t>(8, run.num_bytes - begin);
        std::uint64_t word = 0;
        std::memcpy(&word, run.data + begin, static_cast<std::size_t>(num));
        const std::uint64_t i = run.first_word + static_cast<std::uint64_t>(begin / 8);
        const std::uint64_t h = mix64(word + (i + 1) * kDigestStep);
        sum.digest += {.lane0 = h, .lane1 = (h >> 32) * (h & 0xffffffffu)};
        for (int k = 0; k < 4; ++k) {
            const auto bits = static_cast<std::uint32_t>(word >> (16 * k) & 0xffff) << 16;
            if (!std::isfinite(std::bit_cast<float>(bits))) ++sum.num_nonfinite;
        }
    }
    return sum;
}

class DigestOnLevel : public testing::TestWithParam<IsaLevel> {
  protected:
    void SetUp() override {
        if (GetParam() > best_isa()) GTEST_SKIP() << "this machine has no " << name_of(GetParam());
        add_run_ = add_run_on(GetParam());
    }
    AddRun add_run_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(
    EveryLevel,
    DigestOnLevel,
    testing::Values(IsaLevel::kScalar, IsaLevel::kAvx2, IsaLevel::kAvx512, IsaLevel::kAvx512Bf16),
    [](const auto& level) { return std::string(name_of(level.param)); }
);

TEST_P(DigestOnLevel, GiveTheVectorsThatNumpyGave) {
    std::ifstream file(source_dir() + "/tests/digest/digest_vectors.json");
    const nlohmann::json vectors = nlohmann::json::parse(file);
    ASSERT_GE(vectors.size(), 16u);
    for (const auto& vector : vectors) {
        SCOPED_TRACE(vector.dump());
        const std::int64_t rows = vector["rows"];
        const std::int64_t row_bytes = vector["row_bytes"];
        if (rows * row_bytes == 0) continue;
        const std::vector<std::byte> bytes =
            vector["data"] == "zero"
                ? std::vector<std::byte>(static_cast<std::size_t>(rows * row_bytes))
                : pattern(rows * row_bytes);
        const Digest expected{
            .lane0 = std::stoull(vector["lane0"].get<std::string>(), nullptr, 16),
            .lane1 = std::stoull(vector["lane1"].get<std::string>(), nullptr, 16),
        };
        EXPECT_EQ(digest_of(whole_rows(bytes, row_bytes, 0), add_run_).digest, expected);
    }
}

// The lengths cover the steps of all vector loops, at every alignment of a word.
TEST_P(DigestOnLevel, RunsOfEveryLengthAtEveryAddressFollowTheDefinition) {
    std::mt19937_64 engine(3);
    std::vector<std::byte> bytes(1024);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(engine());
    for (std::size_t at = 0; at < bytes.size(); at += 34)  // adds infinities and NaNs
        std::memset(&bytes[at], at % 4 == 0 ? 0x7f : 0xff, 2), bytes[at] |= std::byte{0x80};
    for (std::int64_t num = 0; num < 700; ++num) {
        const DigestRun run{
            .data = bytes.data() + num % 9, .num_bytes = num, .first_word = engine() >> 20};
        DigestSum sum{.digest = {.lane0 = 1, .lane1 = 2}, .num_nonfinite = 3};
        add_run_(run, sum);
        DigestSum expected = by_definition(run);
        expected.digest += {.lane0 = 1, .lane1 = 2};
        ASSERT_EQ(sum.digest, expected.digest) << num;
        ASSERT_EQ(sum.num_nonfinite, expected.num_nonfinite + 3) << num;
    }
}

// Every length is copied, aligned or not, and no byte beyond it.
TEST_P(DigestOnLevel, ARunIsCopiedOnTheWay) {
    std::mt19937_64 engine(5);
    std::vector<std::byte> bytes(2048);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(engine());
    struct alignas(64) Line {
        std::array<std::byte, 64> bytes;
    };
    for (std::int64_t num = 0; num < 1200; num += num < 600 ? 1 : 37) {
        for (const std::size_t shift : {std::size_t{0}, static_cast<std::size_t>(num % 64)}) {
            std::vector<Line> there(22);
            std::byte* to = there[1].bytes.data() + shift;
            std::memset(there.data(), 0x5a, there.size() * sizeof(Line));
            const DigestRun run{
                .data = bytes.data() + num % 5,
                .num_bytes = num,
                .first_word = 11,
                .copy_to = to,
                .copy_path = num % 2 == 0 ? CopyPath::kPastCache : CopyPath::kCached,
            };
            DigestSum sum;
            add_run_(run, sum);
            ASSERT_EQ(sum.digest, by_definition(run).digest) << num;
            ASSERT_TRUE(std::equal(run.data, run.data + num, to)) << num << ", " << shift;
            ASSERT_EQ(to[-1], std::byte{0x5a}) << num;
            ASSERT_EQ(to[num], std::byte{0x5a}) << num;
        }
    }
}

TEST_P(DigestOnLevel, ARectangleIsCopiedToRowsOfAnotherLength) {
    const std::vector<std::byte> bytes = pattern(40 * 96);
    std::vector<std::byte> there(40 * 200, std::byte{0x5a});
    DigestRows rows{
        .data = bytes.data() + 8,
        .num_rows = 40,
        .row_bytes = 64,
        .row_stride_bytes = 96,
        .first_word = 1,
        .words_per_row = 12,
    };
    const Digest expected = digest_of(rows, add_run_).digest;
    rows.copy_to = there.data();
    rows.copy_stride_bytes = 200;
    EXPECT_EQ(digest_of(rows, add_run_).digest, expected);
    for (std::size_t row = 0; row < 40; ++row) {
        for (std::size_t i = 0; i < 200; ++i) {
            ASSERT_EQ(there[row * 200 + i], i < 64 ? bytes[row * 96 + 8 + i] : std::byte{0x5a})
                << row << ", " << i;
        }
    }
}

TEST_P(DigestOnLevel, EveryBf16IsFiniteOrCounted) {
    std::vector<std::uint16_t> all(1 << 16);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    std::shuffle(all.begin(), all.end(), std::mt19937(7));
    const auto bytes = std::as_bytes(std::span(all));
    const DigestSum sum = digest_of(whole_rows(bytes, 1 << 17, 0), add_run_);
    EXPECT_EQ(sum.num_nonfinite, 2u * 128);  // an exponent of ones: 128 mantissas, two signs
}

// Rows that can be joined, and rows that cannot because the last word of each is padded.
TEST_P(DigestOnLevel, PiecesOfWholeRowsAddUp) {
    for (const std::int64_t row_bytes : {2, 6, 8, 30, 64, 1042, 4096}) {
        const std::vector<std::byte> bytes = pattern(37 * row_bytes);
        const Digest whole = digest_of(whole_rows(bytes, row_bytes, 0), add_run_).digest;
        Digest sum;
        for (std::int64_t row = 0; row < 37; row += 5) {
            const std::int64_t num = std::min<std::int64_t>(5, 37 - row);
            const auto piece = std::span(bytes).subspan(
                static_cast<std::size_t>(row * row_bytes), static_cast<std::size_t>(num * row_bytes)
            );
            sum += digest_of(whole_rows(piece, row_bytes, row), add_run_).digest;
        }
        EXPECT_EQ(sum, whole) << row_bytes;
    }
}

TEST_P(DigestOnLevel, AColumnRangeIsReadWithItsStride) {
    constexpr std::int64_t kRowBytes = 1042;  // the last word of a row has two bytes
    const std::vector<std::byte> bytes = pattern(23 * kRowBytes);
    const Digest whole = digest_of(whole_rows(bytes, kRowBytes, 0), add_run_).digest;
    Digest sum;
    for (const auto& [begin, end] : {std::pair{0, 40}, {40, 1040}, {1040, 1042}}) {
        const DigestRows cols{
            .data = bytes.data() + begin,
            .num_rows = 23,
            .row_bytes = end - begin,
            .row_stride_bytes = kRowBytes,
            .first_word = static_cast<std::uint64_t>(begin / 8),
            .words_per_row = 131,
        };
        sum += digest_of(cols, add_run_).digest;
    }
    EXPECT_EQ(sum, whole);
}

}  // namespace
}  // namespace pitstop::digest::test
