#include "kernels/low_rank.h"

#include "tests/kernels/backend.h"

#include <cmath>
#include <vector>

namespace pitstop::kernels::test {
namespace {

// A pair of matrices, and the rows that have it.
struct Pair {
    Pair(
        std::int64_t row_begin_in,
        std::int64_t num_rows_in,
        std::int64_t N,
        std::int64_t K,
        std::int64_t rank,
        unsigned seed
    )
        : row_begin(row_begin_in),
          num_rows(num_rows_in),
          scale(0.5f + 0.25f * static_cast<float>(seed % 5)),
          a(random_matrix<float>(rank, K, seed)),
          b(random_matrix<float>(N, rank, seed + 1)),
          h(num_rows, rank, 0x33) {}

    [[nodiscard]] LowRankSegment segment(ActView y) {
        return {
            .row_begin = row_begin,
            .num_rows = num_rows,
            .a = a.view(),
            .b = b.view(),
            .scale = scale,
            .y = y,
            .h = h.view()};
    }

    std::int64_t row_begin;
    std::int64_t num_rows;
    float scale;
    Matrix<float> a;
    Matrix<float> b;
    Matrix<float> h;
};

// A GPU has another form of the op (cuda_low_rank_rows_test.cpp).
class LowRank : public OnBackend {
  protected:
    void SetUp() override {
        OnBackend::SetUp();
        if (is_gpu()) GTEST_SKIP() << "a GPU has another form of it";
    }

    template <class X, class Y>
    void expect_reference(std::int64_t M, std::int64_t N, std::int64_t K, std::int64_t rank) {
        SCOPED_TRACE(
            testing::Message() << "M " << M << " N " << N << " K " << K << " rank " << rank
        );
        const Matrix<X> x = random_matrix<X>(M, K, 1);
        Matrix<Y> expected = random_matrix<Y>(M, N, 2);
        Matrix<Y> actual = expected;
        const Matrix<Y> before = expected;
        // Two adapters, and a row without one between them.
        const std::int64_t half = M / 2;
        std::vector<Pair> pairs;
        pairs.reserve(2);
        pairs.emplace_back(0, half, N, K, rank, 11);
        pairs.emplace_back(half + 1, M - half - 1, N, K, rank + 3, 23);
        std::vector<LowRankSegment> segments;
        for (Pair& pair : pairs) segments.push_back(pair.segment(expected.view()));
        low_rank_ref({.x = x.view(), .segments = segments});
        for (LowRankSegment& segment : segments) segment.y = actual.view();
        ops().low_rank({.x = x.view(), .segments = segments, .stream = stream()});
        EXPECT_EQ(actual.bits(half), before.bits(half));
        expect_within(actual, expected, [&](std::int64_t m, std::int64_t n) {
            if (m == half) return 1e-300;  // the row without an adapter keeps its bits
            const Pair& pair = pairs[m < half ? 0 : 1];
            const auto r = static_cast<double>(pair.a.num_rows());
            double sum = 0.0;
            for (std::int64_t j = 0; j < pair.a.num_rows(); ++j) {
                double h = 0.0;
                for (std::int64_t k = 0; k < K; ++k)
                    h += std::abs(pair.a.value(j, k) * x.value(m, k));
                sum += std::abs(pair.b.value(n, j)) * h;
            }
            // The errors: in h, the roundings of a lane's sum and of the tree (linear.h); in the
            // sum over j, one or two per term; then the scale and y.
            const double roundings = 2.0 * (static_cast<double>(K) / 16.0 + 8.0) + 2.0 * (r + 2.0);
            return roundings * kEps32 * (pair.scale * sum + std::abs(before.value(m, n))) +
                   2.02 * rounding_of(kDTypeOf<Y>) * std::abs(expected.value(m, n));
        });
    }
};
PITSTOP_ON_BACKENDS(LowRank, Order::kDefault);

TEST_P(LowRank, MeetsTheReferenceOnAwkwardShapes) {
    for (const std::int64_t M : {1, 2, 3, 5, 9, 18}) {
        for (const auto& [N, K] : {std::pair{1, 1}, {15, 16}, {17, 33}, {70, 136}, {130, 48}}) {
            for (const std::int64_t rank : {1, 4, 16, 21}) {
                expect_reference<float, float>(M, N, K, rank);
                expect_reference<bf16, float>(M, N, K, rank);
                expect_reference<bf16, bf16>(M, N, K, rank);
            }
        }
    }
    expect_reference<bf16, float>(3, 40, 64, LowRankArgs::kRankMax - 3);
}

// P6: for any other rows in the call, and any cut of a row's tokens into segments.
TEST_P(LowRank, P6_ARowHasTheBitsThatItHasAlone) {
    constexpr std::int64_t M = 11;
    constexpr std::int64_t N = 83;
    constexpr std::int64_t K = 200;
    const Matrix<bf16> x = random_matrix<bf16>(M, K, 1);
    const Matrix<float> before = random_matrix<float>(M, N, 2);
    Matrix<float> together = before;
    std::vector<Pair> pairs;
    pairs.reserve(3);
    pairs.emplace_back(0, 6, N, K, 16, 11);
    pairs.emplace_back(6, 1, N, K, 5, 13);
    pairs.emplace_back(7, 4, N, K, 33, 17);
    std::vector<LowRankSegment> segments;
    for (Pair& pair : pairs) segments.push_back(pair.segment(together.view()));
    ops().low_rank({.x = x.view(), .segments = segments, .stream = stream()});
    Matrix<float> alone = before;
    for (Pair& pair : pairs) {
        for (std::int64_t i = 0; i < pair.num_rows; ++i) {
            LowRankSegment one = pair.segment(alone.view());
            one.row_begin += i;
            one.num_rows = 1;
            ops().low_rank({.x = x.view(), .segments = {&one, 1}, .stream = stream()});
        }
    }
    EXPECT_EQ(together.bits(), alone.bits());
}

// Adapters of experts make a segment per expert and adapter, many of them without rows.
TEST_P(LowRank, ManySegmentsHaveTheBitsOfEachAlone) {
    constexpr std::int64_t kNumSegments = 300, kN = 80, kK = 48;
    std::vector<Pair> pairs;
    pairs.reserve(kNumSegments);
    std::int64_t M = 0;
    for (std::int64_t i = 0; i < kNumSegments; ++i) {
        const std::int64_t num_rows = i % 3 == 0 ? 0 : i % 7;
        pairs.emplace_back(M, num_rows, kN, kK, 1 + i % 9, static_cast<unsigned>(i));
        M += num_rows;
    }
    const Matrix<float> x = random_matrix<float>(M, kK, 1);
    Matrix<float> together = random_matrix<float>(M, kN, 2);
    Matrix<float> alone = together;
    std::vector<LowRankSegment> segments;
    for (Pair& pair : pairs) {
        const LowRankSegment segment = pair.segment(alone.view());
        ops().low_rank({.x = x.view(), .segments = {&segment, 1}, .stream = stream()});
        segments.push_back(pair.segment(together.view()));
    }
    ops().low_rank({.x = x.view(), .segments = segments, .stream = stream()});
    for (std::int64_t m = 0; m < M; ++m) EXPECT_EQ(together.bits(m), alone.bits(m)) << m;
}

TEST_P(LowRank, ZerosInBLeaveTheBitsOfY) {
    const Matrix<float> x = random_matrix<float>(3, 40, 1);
    Matrix<float> y = random_matrix<float>(3, 20, 2);
    const std::string before = y.bits();
    Pair pair(0, 3, 20, 40, 8, 3);
    for (std::int64_t n = 0; n < 20; ++n) {
        for (std::int64_t j = 0; j < 8; ++j) pair.b(n, j) = 0.0f;
    }
    const LowRankSegment segment = pair.segment(y.view());
    ops().low_rank({.x = x.view(), .segments = {&segment, 1}, .stream = stream()});
    EXPECT_EQ(y.bits(), before);
}

}  // namespace
}  // namespace pitstop::kernels::test
