#include "kernels/linear.h"

#include "tests/kernels/support.h"

namespace pitstop::kernels::test {
namespace {

class Linear : public OnLevel {};
PITSTOP_ON_EVERY_LEVEL(Linear);

// Each of the lane's K/16 products and sums errs by at most e of the sum of magnitudes so far
// (twice in `scalar`, which rounds the product too, and in VDPBF16PS, whose rounding is not
// specified), the tree over the lanes adds 4, bias and y two more. Denormals that VDPBF16PS
// flushes: 2^-126 per product. The reference's own output rounding is inside the same term as the
// actual one.
double linear_bound(double sum_magnitudes, double y, std::int64_t K, DType out) {
    const double roundings = 2.0 * (static_cast<double>(K) / 16.0 + 8.0);
    return roundings * kEps32 * sum_magnitudes + static_cast<double>(K) * 0x1p-126 +
           2.0 * rounding_of(out) * std::abs(y) * 1.01;
}

template <class X>
double sum_magnitudes(const Matrix<X>& x, const Matrix<bf16>& w, std::int64_t m, std::int64_t n) {
    double sum = 0.0;
    for (std::int64_t k = 0; k < x.num_cols(); ++k) sum += std::abs(x.value(m, k) * w.value(n, k));
    return sum;
}

template <class X, class Y>
void expect_reference(
    const Ops& ops, Stream stream, std::int64_t M, std::int64_t N, std::int64_t K, LinearMode mode
) {
    SCOPED_TRACE(
        testing::Message() << "M " << M << " N " << N << " K " << K << " mode "
                           << static_cast<int>(mode)
    );
    const Matrix<X> x = random_matrix<X>(M, K, 1);
    const Matrix<bf16> w = random_matrix<bf16>(N, K, 2);
    const Matrix<bf16> bias = random_matrix<bf16>(1, N, 3);
    const Matrix<Y> before = random_matrix<Y>(M, N, 4);
    Matrix<Y> expected(M, N, 0x11);
    Matrix<Y> actual(M, N, 0x22);
    if (mode == LinearMode::kAdd) {
        for (std::int64_t m = 0; m < M; ++m) {
            for (std::int64_t n = 0; n < N; ++n) expected(m, n) = actual(m, n) = before(m, n);
        }
    }
    const LinearPart expected_part{.w = w.view(), .bias = &bias(0, 0), .y = expected.view()};
    const LinearPart actual_part{.w = w.view(), .bias = &bias(0, 0), .y = actual.view()};
    linear_ref({.x = x.view(), .parts = {&expected_part, 1}, .mode = mode});
    ops.linear({.x = x.view(), .parts = {&actual_part, 1}, .mode = mode, .stream = stream});
    expect_within(actual, expected, [&](std::int64_t m, std::int64_t n) {
        const double magnitudes =
            sum_magnitudes(x, w, m, n) + std::abs(bias.value(0, n)) + std::abs(before.value(m, n));
        return linear_bound(magnitudes, expected.value(m, n), K, kDTypeOf<Y>);
    });
}

TEST_P(Linear, MeetsTheReferenceOnAwkwardShapes) {
    for (const std::int64_t M : {1, 2, 3, 5, 6, 7, 13, 33}) {
        for (const auto& [N, K] :
             {std::pair{1, 1}, {3, 17}, {8, 31}, {9, 32}, {24, 33}, {70, 128}, {13, 500}}) {
            expect_reference<float, float>(ops(), stream_of(pool_), M, N, K, LinearMode::kWrite);
            expect_reference<bf16, float>(ops(), stream_of(pool_), M, N, K, LinearMode::kWrite);
        }
    }
    expect_reference<float, bf16>(ops(), stream_of(pool_), 7, 70, 129, LinearMode::kWrite);
    expect_reference<bf16, bf16>(ops(), stream_of(pool_), 7, 70, 129, LinearMode::kWrite);
    expect_reference<float, float>(ops(), stream_of(pool_), 7, 70, 129, LinearMode::kAdd);
    expect_reference<bf16, float>(ops(), stream_of(pool_), 7, 70, 129, LinearMode::kAdd);
    expect_reference<bf16, float>(ops(), stream_of(pool_), 100, 300, 1024, LinearMode::kWrite);
    expect_reference<float, float>(ops(), stream_of(pool_), 100, 300, 1024, LinearMode::kWrite);
}

TEST_P(Linear, NoRowsIsNoWork) {
    const Matrix<bf16> w = random_matrix<bf16>(4, 8, 2);
    Matrix<float> y(0, 4, 0x22);
    const LinearPart part{.w = w.view(), .y = y.view()};
    ops().linear(
        {.x = View2<const float>{nullptr, 0, 8, 8}, .parts = {&part, 1}, .stream = stream_of(pool_)}
    );
}

// q, k and v in one call are what they are in three.
TEST_P(Linear, PartsOfOneCallAreSeparateProducts) {
    const std::int64_t K = 96;
    const Matrix<bf16> x = random_matrix<bf16>(5, K, 1);
    const std::int64_t widths[] = {64, 24, 7};
    Matrix<float> fused(5, 95, 0x33);
    std::vector<Matrix<bf16>> w;
    std::vector<LinearPart> parts;
    for (unsigned p = 0; p < 3; ++p) w.push_back(random_matrix<bf16>(widths[p], K, 10 + p));
    std::int64_t begin = 0;
    for (unsigned p = 0; p < 3; ++p) {
        parts.push_back(
            {.w = w[p].view(),
             .bias = &w[p](1, 0),
             .y = cols(ActView(fused.view()), begin, widths[p])}
        );
        begin += widths[p];
    }
    ops().linear({.x = x.view(), .parts = parts, .stream = stream_of(pool_)});
    begin = 0;
    for (unsigned p = 0; p < 3; ++p) {
        Matrix<float> alone(5, widths[p], 0x44);
        const LinearPart part{.w = w[p].view(), .bias = &w[p](1, 0), .y = alone.view()};
        ops().linear({.x = x.view(), .parts = {&part, 1}});
        for (std::int64_t m = 0; m < 5; ++m) {
            for (std::int64_t n = 0; n < widths[p]; ++n)
                EXPECT_EQ(fused(m, begin + n), alone(m, n));
        }
        begin += widths[p];
    }
}

template <class X>
void expect_rows_alone(const Ops& ops, Stream stream, std::int64_t N, std::int64_t K) {
    SCOPED_TRACE(testing::Message() << "N " << N << " K " << K);
    const std::int64_t M_max = 130;
    Matrix<X> x = random_matrix<X>(M_max, K, 5, 3.0);
    const Matrix<bf16> w = random_matrix<bf16>(N, K, 6);
    Matrix<float> alone(M_max, N, 0x55);
    for (std::int64_t m = 0; m < M_max; ++m) {
        const LinearPart part{.w = w.view(), .y = alone.rows(m, 1)};
        ops.linear({.x = x.rows(m, 1), .parts = {&part, 1}});
    }
    std::mt19937 engine(7);
    for (const std::int64_t M : {2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 63, 64, 65, 130}) {
        const std::int64_t first =
            static_cast<std::int64_t>(engine() % static_cast<unsigned>(M_max - M + 1));
        Matrix<float> batch(M, N, 0x66);
        const LinearPart part{.w = w.view(), .y = batch.view()};
        ops.linear({.x = x.rows(first, M), .parts = {&part, 1}, .stream = stream});
        for (std::int64_t m = 0; m < M; ++m)
            ASSERT_EQ(batch.bits(m), alone.bits(first + m)) << "M " << M << " row " << m;
    }
}

TEST_P(Linear, P6_RowDoesNotDependOnBatchOrThreads) {
    for (const auto& [N, K] : {std::pair{7, 24}, {64, 128}, {300, 129}, {40, 1024}, {513, 96}}) {
        expect_rows_alone<float>(ops(), stream_of(pool_), N, K);
        expect_rows_alone<bf16>(ops(), stream_of(pool_), N, K);
    }
}

// The levels differ as documented: avx2 and avx512 not at all, the others by the rounding of the
// sums.
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
