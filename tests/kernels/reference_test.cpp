// Tests that need no backend: the definitions against published numbers, and the CPU's levels
// against each other.
#include "base/isa.h"
#include "kernels/ops.h"
#include "kernels/philox.h"
#include "tests/kernels/support.h"

#include <gtest/gtest.h>

namespace pitstop::kernels::test {
namespace {

// Known answers of Random123's kat_vectors, philox4x32 10.
TEST(Philox, GivesTheKnownAnswers) {
    using Words = std::array<std::uint32_t, 4>;
    EXPECT_EQ(
        philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8})
    );
    const std::uint32_t ones = 0xffffffff;
    EXPECT_EQ(
        philox({ones, ones, ones, ones}, {ones, ones}),
        (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd})
    );
    EXPECT_EQ(
        philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
        (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1})
    );
}

// SplitMix64 from seed 0 (Vigna's splitmix64.c) starts with these: independent of all our code.
TEST(Digest, OfZerosIsSplitMix64) {
    const std::uint64_t sequence[] = {
        0xe220a8397b1dcdafu, 0x6e789e6aa1b965f4u, 0x06c45d188009454fu};
    std::uint64_t sum = 0;
    for (std::int64_t words = 1; words <= 3; ++words) {
        sum += sequence[words - 1];
        const std::vector<std::uint8_t> zeros(static_cast<std::size_t>(words) * 8);
        Digest digest;
        digest_ref(
            {.data = zeros.data(),
             .rows = 1,
             .row_bytes = words * 8,
             .row_stride_bytes = words * 8,
             .words_per_row = static_cast<std::uint64_t>(words),
             .sum = &digest}
        );
        EXPECT_EQ(digest.lane0, sum);
    }
}

// The levels differ as documented: avx2 and avx512 have equal bits, the others differ by the
// rounding of the sums.
TEST(LinearLevels, Avx2AndAvx512GiveEqualBits) {
    if (best_isa() < IsaLevel::kAvx512) GTEST_SKIP() << "this machine has no AVX-512";
    const std::int64_t K = 777;
    const Matrix<bf16> x16 = random_matrix<bf16>(9, K, 1);
    const Matrix<float> x32 = random_matrix<float>(9, K, 1);
    const Matrix<bf16> w = random_matrix<bf16>(50, K, 2);
    for (const ConstActView x : {ConstActView(x16.view()), ConstActView(x32.view())}) {
        Matrix<float> a(9, 50, 0x11);
        Matrix<float> b(9, 50, 0x22);
        const LinearPart part_a{.w = w.view(), .y = a.view()};
        const LinearPart part_b{.w = w.view(), .y = b.view()};
        cpu_ops(IsaLevel::kAvx2)->linear({.x = x, .parts = {&part_a, 1}});
        cpu_ops(IsaLevel::kAvx512)->linear({.x = x, .parts = {&part_b, 1}});
        EXPECT_EQ(a.bits(), b.bits());
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
