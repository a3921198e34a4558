#include "kernels/linear.h"

#include "tests/kernels/backend.h"

#include <array>
#include <cmath>
#include <numeric>
#include <random>

namespace pitstop::kernels::test {
namespace {

class Linear : public OnBackend {
  protected:
    // The relative error of a product's sum, as a share of the sum of its magnitudes.
    //
    // On the CPU each of the lane's K/16 products and sums errs by at most e of the sum of
    // magnitudes so far. The error is twice that in `scalar`, which rounds the product too, and in
    // VDPBF16PS, whose rounding is not specified. The tree over the lanes adds 4, bias and y two
    // more. On a GPU the sum is a chain of K/16 mma, or of K products in the general kernel. Each
    // link errs by e per rounding, twice if tensor cores truncate; then bias and y.
    [[nodiscard]] double roundings(std::int64_t K, bool is_general) const {
        const auto k = static_cast<double>(K);
        if (!is_gpu()) return 2.0 * (k / 16.0 + 8.0);
        return 2.0 * ((is_general ? k : k / 16.0 + 16.0) + 4.0);
    }

    template <class X, class Y>
    void expect_reference(std::int64_t M, std::int64_t N, std::int64_t K, LinearMode mode) {
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
        linear_ref({.x = x.view(), .parts = {&expected_part, 1}, .mode = mode});
        const auto device_x = put(x);
        const auto device_w = put(w);
        const auto device_bias = put(bias);
        const auto y = put(actual);
        const LinearPart part{.w = device_w.view(), .bias = device_bias.view().data, .y = y.view()};
        run({&part, 1}, device_x.view(), mode, stream());
        y.fetch(actual);
        const double relative = roundings(K, std::is_same_v<X, float> || K % 8 != 0) * kEps32;
        expect_within(actual, expected, [&](std::int64_t m, std::int64_t n) {
            double magnitudes = std::abs(bias.value(0, n)) + std::abs(before.value(m, n));
            for (std::int64_t k = 0; k < K; ++k)
                magnitudes += std::abs(x.value(m, k) * w.value(n, k));
            // VDPBF16PS flushes denormals: 2^-126 per product. The reference's rounding of its
            // output is inside the same term as the actual one.
            return relative * magnitudes + static_cast<double>(K) * 0x1p-126 +
                   2.02 * rounding_of(kDTypeOf<Y>) * std::abs(expected.value(m, n));
        });
    }

    void run(std::span<const LinearPart> parts, ConstActView x, LinearMode mode, Stream stream) {
        const Scratch space = scratch(ops().linear_workspace_bytes());
        ops().linear(
            {.x = x, .parts = parts, .mode = mode, .workspace = space.workspace(), .stream = stream}
        );
    }
};
PITSTOP_ON_BACKENDS(Linear, Order::kEvery);

TEST_P(Linear, MeetsTheReferenceOnAwkwardShapes) {
    std::vector<std::int64_t> batches = {1, 4, 5, 17, 65, 130};
    if (!is_small()) batches.insert(batches.end(), {2, 3, 6, 7, 13, 16, 33, 64});
    for (const std::int64_t M : batches) {
        for (const auto& [N, K] :
             {std::pair{1, 8}, {17, 64}, {33, 72}, {31, 33}, {70, 136}, {130, 264}}) {
            expect_reference<bf16, float>(M, N, K, LinearMode::kWrite);
        }
        expect_reference<float, float>(M, 65, 50, LinearMode::kWrite);
    }
    for (const auto& [N, K] : {std::pair{1, 1}, {3, 17}, {8, 31}, {9, 32}, {24, 33}, {13, 500}}) {
        for (const std::int64_t M : {3, 33}) {
            expect_reference<float, float>(M, N, K, LinearMode::kWrite);
            expect_reference<bf16, float>(M, N, K, LinearMode::kWrite);
        }
    }
    for (const std::int64_t M : {1, 3, 9, 40, 129}) {
        expect_reference<bf16, bf16>(M, 66, 128, LinearMode::kWrite);
        expect_reference<bf16, float>(M, 66, 128, LinearMode::kAdd);
        expect_reference<float, float>(M, 66, 128, LinearMode::kAdd);
    }
    expect_reference<float, bf16>(7, 70, 129, LinearMode::kWrite);
    // Split four ways, with a number of rounds that four does not divide.
    for (const std::int64_t M : {1, 3})
        expect_reference<bf16, float>(M, 40, 1288, LinearMode::kWrite);
    expect_reference<bf16, float>(1, 40, 4104, LinearMode::kWrite);
    expect_reference<bf16, float>(7, 40, 4104, LinearMode::kWrite);
    // Four warps of unequal parts, and rows of two kinds of tiles.
    for (const std::int64_t K : {128, 200, 456, 1544})
        expect_reference<bf16, float>(13, 20, K, LinearMode::kAdd);
    expect_reference<bf16, bf16>(5, 4072, 72, LinearMode::kWrite);
    if (is_small()) return;
    expect_reference<bf16, float>(100, 300, 1024, LinearMode::kWrite);
    expect_reference<float, float>(100, 300, 1024, LinearMode::kWrite);
    // Few rows, and enough outputs for whole blocks on the CPU: sums that are computed in parts fit
    // their buffer.
    for (const std::int64_t M : {7, 8}) {
        for (const std::int64_t K : {520, 586, 896, 1030, 1176})
            expect_reference<float, float>(M, 2100, K, LinearMode::kWrite);
        for (const std::int64_t K : {1025, 1176, 2056})
            expect_reference<bf16, float>(M, 2100, K, LinearMode::kWrite);
    }
}

// For five to sixteen rows a GPU has one kernel for few weight rows and another for many. In both,
// a row's bits are the same in any batch.
TEST_P(Linear, ARowHasTheSameBitsAmongFiveAndAmongSixteen) {
    constexpr std::int64_t kRows = 16;
    for (const auto& [N, K] : {std::pair{20, 72}, {40, 1288}, {4104, 72}}) {
        const auto x = put(random_matrix<bf16>(kRows, K, 1));
        const auto w = put(random_matrix<bf16>(N, K, 2));
        const auto product = [&](std::int64_t begin, std::int64_t M) {
            Matrix<float> y(M, N, 0x22);
            const auto device_y = put(y);
            const LinearPart part{.w = w.view(), .y = device_y.view()};
            run({&part, 1},
                rows(View2<const bf16>(x.view()), begin, M),
                LinearMode::kWrite,
                stream());
            device_y.fetch(y);
            return y;
        };
        const Matrix<float> all = product(0, kRows);
        for (const std::int64_t M : {5, 9, 15}) {
            for (const std::int64_t begin : {std::int64_t{0}, kRows - M}) {
                SCOPED_TRACE(testing::Message() << "N " << N << " K " << K << " M " << M);
                const Matrix<float> some = product(begin, M);
                for (std::int64_t m = 0; m < M; ++m)
                    ASSERT_EQ(some.bits(m), all.bits(begin + m)) << "row " << m;
            }
        }
    }
}

// Products and silu_mul in one pass have the bits of two passes, also for widths at which warps
// share a row.
TEST_P(Linear, GatedInOnePassIsGatedInTwo) {
    if (ops().linear_silu_mul == nullptr) GTEST_SKIP() << "they are two passes here";
    for (const std::int64_t M : {1, 2, 3, 4}) {
        for (const auto& [F, K] : {std::pair{1, 8}, {17, 64}, {31, 1032}, {70, 520}}) {
            SCOPED_TRACE(testing::Message() << "M " << M << " F " << F << " K " << K);
            const auto x = put(random_matrix<bf16>(M, K, 1));
            const Matrix<bf16> w = random_matrix<bf16>(2 * F, K, 2);
            const auto device_w = put(w);
            const auto bias = put(random_matrix<bf16>(1, 2 * F, 3));
            Matrix<bf16> one(M, F, 0x33), two(M, F, 0x44);
            const auto device_one = put(one);
            const auto device_two = put(two);
            const auto gate_up = put(Matrix<bf16>(M, 2 * F, 0x55));
            const auto part_of = [&](std::int64_t first) {
                return LinearPart{
                    .w = rows(device_w.view(), first, F),
                    .bias = first == 0 ? nullptr : bias.view().data + first,
                    .y = columns(gate_up.view(), first, F)};
            };
            const LinearPart parts[] = {part_of(0), part_of(F)};
            run(parts, x.view(), LinearMode::kWrite, stream());
            ops().silu_mul(
                {.gate = parts[0].y, .up = parts[1].y, .y = device_two.view(), .stream = stream()}
            );
            ASSERT_TRUE(ops().linear_silu_mul(
                {.x = x.view(), .parts = parts, .stream = stream()}, device_one.view()
            ));
            device_one.fetch(one);
            device_two.fetch(two);
            EXPECT_EQ(one.bits(), two.bits());
        }
    }
    const auto wide = put(random_matrix<bf16>(5, 64, 1));
    const auto w = put(random_matrix<bf16>(16, 64, 2));
    const auto y = put(Matrix<bf16>(5, 16, 0x11));
    const LinearPart parts[] = {
        {.w = rows(w.view(), 0, 8), .y = columns(y.view(), 0, 8)},
        {.w = rows(w.view(), 8, 8), .y = columns(y.view(), 8, 8)}};
    EXPECT_FALSE(ops().linear_silu_mul(
        {.x = wide.view(), .parts = parts, .stream = stream()}, columns(y.view(), 0, 8)
    ));
}

TEST_P(Linear, NoRowsIsNoWork) {
    const auto w = put(random_matrix<bf16>(4, 8, 2));
    const LinearPart part{.w = w.view(), .y = View2<float>{nullptr, 0, 4, 4}};
    run({&part, 1}, View2<const float>{nullptr, 0, 8, 8}, LinearMode::kWrite, stream());
}

// q, k and v in one call have the bits of three calls, side by side in memory or not.
class LinearParts : public Linear {
  protected:
    void expect_separate(std::int64_t M, std::int64_t K, std::span<const std::int64_t> widths) {
        SCOPED_TRACE(testing::Message() << "M " << M << " K " << K);
        const std::int64_t N = std::accumulate(widths.begin(), widths.end(), std::int64_t{0});
        const auto device_w = put(random_matrix<bf16>(N, K, 2));
        const auto device_bias = put(random_matrix<bf16>(1, N, 3));
        const auto x = put(random_matrix<bf16>(M, K, 1));
        Matrix<float> fused(M, N, 0x33), apart(M, N, 0x44);
        const auto device_fused = put(fused);
        const auto device_apart = put(apart);
        std::vector<LinearPart> parts;
        std::int64_t begin = 0;
        for (const std::int64_t width : widths) {
            parts.push_back(
                {.w = rows(View2<const bf16>(device_w.view()), begin, width),
                 .bias = device_bias.view().data + begin,
                 .y = columns(device_fused.view(), begin, width)}
            );
            LinearPart alone = parts.back();
            alone.y = columns(device_apart.view(), begin, width);
            run({&alone, 1}, x.view(), LinearMode::kWrite, one_thread());
            begin += width;
        }
        run(parts, x.view(), LinearMode::kWrite, stream());
        device_fused.fetch(fused);
        device_apart.fetch(apart);
        // cuBLASLt may choose another algorithm for another N.
        const bool is_cublas = is_gpu() && &ops() == cuda_ops() && M > 16;
        for (std::int64_t m = 0; m < M; ++m) {
            for (std::int64_t n = 0; n < N; ++n) {
                EXPECT_NEAR(fused(m, n), apart(m, n), is_cublas ? 1e-3 : 0.0)
                    << "at " << m << ", " << n;
            }
        }
    }
};
PITSTOP_ON_BACKENDS(LinearParts, Order::kEvery);

TEST_P(LinearParts, OfOneCallAreSeparateProducts) {
    for (const std::int64_t M : {1, 5, 20})
        expect_separate(M, 128, std::array<std::int64_t, 3>{64, 24, 40});
}

// On a GPU the widest part is split four ways where the others are split eight.
TEST_P(LinearParts, AreSplitEachByItsOwnWidth) {
    for (const std::int64_t M : {1, 3})
        expect_separate(M, 2048, std::array<std::int64_t, 3>{2048, 24, 40});
}

// P6: a row has the bits that it has alone, in every batch, at every place in it.
class LinearInFixedOrder : public Linear {
  protected:
    template <class X>
    void expect_rows_alone(std::int64_t N, std::int64_t K) {
        SCOPED_TRACE(testing::Message() << "N " << N << " K " << K);
        const std::int64_t M_max = 260;
        // Exponents from 2^-20 to 2^20: another order of summation changes the bits.
        Matrix<X> x = random_matrix<X>(M_max, K, 5, 3.0);
        for (std::int64_t m = 0; m < M_max; ++m) {
            for (std::int64_t k = 0; k < K; ++k) {
                const int exponent = static_cast<int>((m + k * 7) % 41) - 20;
                x(m, k) = from_double<X>(std::ldexp(x.value(m, k), exponent));
            }
        }
        const auto device_x = put(x);
        const auto w = put(random_matrix<bf16>(N, K, 6));
        const auto product = [&](std::int64_t begin, std::int64_t M, Stream stream) {
            Matrix<float> y(M, N, 0x22);
            const auto device_y = put(y);
            const LinearPart part{.w = w.view(), .y = device_y.view()};
            run({&part, 1},
                rows(View2<const X>(device_x.view()), begin, M),
                LinearMode::kWrite,
                stream);
            device_y.fetch(y);
            return y;
        };
        const Matrix<float> all = product(0, M_max, stream());
        for (std::int64_t m = 0; m < M_max; m += is_gpu() ? 65 : 13)
            ASSERT_EQ(product(m, 1, one_thread()).bits(), all.bits(m)) << "row " << m << " alone";
        for (const std::int64_t M :
             {2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129}) {
            for (const std::int64_t begin : {std::int64_t{0}, std::int64_t{3}, M_max - M}) {
                const Matrix<float> some = product(begin, M, stream());
                for (std::int64_t m = 0; m < M; m += M < 20 ? 1 : 13)
                    ASSERT_EQ(some.bits(m), all.bits(begin + m)) << "row " << m << " of " << M;
            }
        }
    }
};
PITSTOP_ON_BACKENDS(LinearInFixedOrder, Order::kFixed);

TEST_P(LinearInFixedOrder, P6_RowDoesNotDependOnBatchOrThreads) {
    expect_rows_alone<bf16>(200, 520);
    if (is_gpu()) return;
    for (const auto& [N, K] :
         {std::pair{7, 24}, {64, 128}, {300, 129}, {40, 1024}, {513, 96}, {75, 2057}}) {
        expect_rows_alone<float>(N, K);
        expect_rows_alone<bf16>(N, K);
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
