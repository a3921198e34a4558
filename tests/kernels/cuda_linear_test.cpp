#include "kernels/linear.h"
#include "kernels/linear_cuda.h"
#include "tests/kernels/cuda_support.h"

namespace pitstop::kernels::test {
namespace {

using LinearFn = void (*)(const LinearArgs&);

class CudaLinear : public OnCuda {
  protected:
    template <class X, class Y>
    void expect_reference(
        LinearFn op, std::int64_t M, std::int64_t N, std::int64_t K, LinearMode mode
    ) {
        SCOPED_TRACE(testing::Message() << "M " << M << " N " << N << " K " << K);
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
        const OnDevice<X> x_there(x, stream());
        const OnDevice<bf16> w_there(w, stream()), bias_there(bias, stream());
        const OnDevice<Y> y(actual, stream());
        const DeviceScratch scratch(kLinearCudaWorkspaceBytes, stream());
        const LinearPart part{.w = w_there.view(), .bias = bias_there.view().data, .y = y.view()};
        op({.x = x_there.view(),
            .parts = {&part, 1},
            .mode = mode,
            .workspace = scratch.workspace(),
            .stream = stream()});
        y.fetch(actual);
        const bool is_chain_of_k = std::is_same_v<X, float> || K % 8 != 0;
        expect_within(actual, expected, [&](std::int64_t m, std::int64_t n) {
            double magnitudes = std::abs(bias.value(0, n)) + std::abs(before.value(m, n));
            for (std::int64_t k = 0; k < K; ++k)
                magnitudes += std::abs(x.value(m, k) * w.value(n, k));
            return linear_bound(magnitudes, expected.value(m, n), K, is_chain_of_k, kDTypeOf<Y>);
        });
    }
};

TEST_F(CudaLinear, MeetsTheReferenceOnAwkwardShapes) {
    for (const LinearFn op : {linear_cuda, linear_cuda_deterministic}) {
        for (const std::int64_t M : {1, 2, 4, 5, 16, 17, 64, 65, 130}) {
            for (const auto& [N, K] :
                 {std::pair{1, 8}, {17, 64}, {33, 72}, {70, 136}, {130, 264}}) {
                expect_reference<bf16, float>(op, M, N, K, LinearMode::kWrite);
            }
            expect_reference<bf16, float>(op, M, 31, 33, LinearMode::kWrite);
            expect_reference<float, float>(op, M, 65, 50, LinearMode::kWrite);
        }
        for (const std::int64_t M : {1, 3, 9, 40, 129}) {
            expect_reference<bf16, bf16>(op, M, 66, 128, LinearMode::kWrite);
            expect_reference<bf16, float>(op, M, 66, 128, LinearMode::kAdd);
            expect_reference<float, float>(op, M, 66, 128, LinearMode::kAdd);
        }
        expect_reference<bf16, float>(op, 1, 40, 4104, LinearMode::kWrite);
        expect_reference<bf16, float>(op, 7, 40, 4104, LinearMode::kWrite);
    }
}

TEST_F(CudaLinear, NoRowsIsNoWork) {
    const Matrix<bf16> w = random_matrix<bf16>(4, 8, 2);
    const OnDevice<bf16> w_there(w, stream());
    const LinearPart part{.w = w_there.view(), .y = View2<float>{nullptr, 0, 4, 4}};
    linear_cuda({.x = View2<const float>{nullptr, 0, 8, 8}, .parts = {&part, 1}, .stream = stream()}
    );
}

// q, k and v in one call are what they are in three, whether or not they lie side by side.
TEST_F(CudaLinear, PartsOfOneCallAreSeparateProducts) {
    const std::int64_t K = 128;
    const std::int64_t widths[] = {64, 24, 40};
    const Matrix<bf16> w = random_matrix<bf16>(64 + 24 + 40, K, 2);
    const OnDevice<bf16> w_there(w, stream());
    for (const LinearFn op : {linear_cuda, linear_cuda_deterministic}) {
        for (const std::int64_t M : {1, 5, 20}) {
            const Matrix<bf16> x = random_matrix<bf16>(M, K, 1);
            const OnDevice<bf16> x_there(x, stream());
            Matrix<float> fused(M, 128, 0x33), apart(M, 128, 0x44);
            const OnDevice<float> fused_there(fused, stream()), apart_there(apart, stream());
            std::vector<LinearPart> parts;
            std::int64_t begin = 0;
            for (const std::int64_t width : widths) {
                parts.push_back(
                    {.w = rows(View2<const bf16>(w_there.view()), begin, width),
                     .y = cols(ActView(fused_there.view()), begin, width)}
                );
                const LinearPart alone{
                    .w = parts.back().w, .y = cols(ActView(apart_there.view()), begin, width)};
                op({.x = x_there.view(), .parts = {&alone, 1}, .stream = stream()});
                begin += width;
            }
            op({.x = x_there.view(), .parts = parts, .stream = stream()});
            fused_there.fetch(fused);
            apart_there.fetch(apart);
            for (std::int64_t m = 0; m < M; ++m) {
                for (std::int64_t n = 0; n < 128; ++n) {
                    // cuBLASLt may take another algorithm for another N.
                    if (op == linear_cuda && M > 16) {
                        EXPECT_NEAR(fused(m, n), apart(m, n), 1e-3);
                    } else {
                        EXPECT_EQ(fused(m, n), apart(m, n))
                            << "M " << M << " at " << m << ", " << n;
                    }
                }
            }
        }
    }
}

// P6: the bits of a row are those it has alone, in every batch, at every place in it.
TEST_F(CudaLinear, P6_DeterministicRowsDoNotDependOnTheBatch) {
    const std::int64_t N = 200;
    const std::int64_t K = 520;
    const std::int64_t M_max = 260;
    // Exponents from 2^-20 to 2^20: an order of summation that differs shows.
    Matrix<bf16> x = random_matrix<bf16>(M_max, K, 5, 3.0);
    for (std::int64_t m = 0; m < M_max; ++m) {
        for (std::int64_t k = 0; k < K; ++k)
            x(m, k) =
                to_bf16(std::ldexp(to_float(x(m, k)), static_cast<int>((m + k * 7) % 41) - 20));
    }
    const Matrix<bf16> w = random_matrix<bf16>(N, K, 6);
    const OnDevice<bf16> x_there(x, stream()), w_there(w, stream());
    const auto run = [&](std::int64_t begin, std::int64_t M) {
        Matrix<float> y(M, N, 0x22);
        const OnDevice<float> y_there(y, stream());
        const LinearPart part{.w = w_there.view(), .y = y_there.view()};
        linear_cuda_deterministic(
            {.x = rows(ConstActView(x_there.view()), begin, M),
             .parts = {&part, 1},
             .stream = stream()}
        );
        y_there.fetch(y);
        return y;
    };
    const Matrix<float> all = run(0, M_max);
    for (const std::int64_t M : {1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129}) {
        for (const std::int64_t begin : {std::int64_t{0}, std::int64_t{3}, M_max - M}) {
            const Matrix<float> some = run(begin, M);
            for (std::int64_t m = 0; m < M; m += M < 20 ? 1 : 13)
                ASSERT_EQ(some.bits(m), all.bits(begin + m)) << "row " << m << " of " << M;
        }
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
