// Tests the CUDA ops whose rows stand alone against their references: embedding, rmsnorm, silu_mul,
// gather_rows, penalties. Some widths fit 16-byte loads, and some do not.
#include "tests/kernels/cuda_support.h"

#include <limits>

namespace pitstop::kernels::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::int64_t kWidths[] = {
    1, 7, 8, 16, 17, 64, 65, 128, 1000, 1024, 2056, 4096, 8192, 8200};

using CudaEmbedding = OnCuda;
TEST_F(CudaEmbedding, GivesItsRowsAndZerosForOtherRanks) {
    for (const std::int64_t H : kWidths) {
        SCOPED_TRACE(testing::Message() << "H " << H);
        const Matrix<bf16> table = random_matrix<bf16>(5, H, 1);
        const std::vector<TokenId> ids = {
            TokenId{10},
            TokenId{14},
            TokenId{9},
            TokenId{15},
            TokenId{-1},
            TokenId{12},
            TokenId{1 << 30}};
        Matrix<float> expected(7, H, 0x11);
        Matrix<float> actual(7, H, 0x22);
        embedding_ref(
            {.ids = ids.data(), .table = table.view(), .vocab_begin = 10, .y = expected.view()}
        );
        const DeviceArray<TokenId> ids_there(ids, stream());
        const OnDevice<bf16> table_there(table, stream());
        const OnDevice<float> y(actual, stream());
        embedding_cuda(
            {.ids = ids_there.data(),
             .table = table_there.view(),
             .vocab_begin = 10,
             .y = y.view(),
             .stream = stream()}
        );
        y.fetch(actual);
        EXPECT_EQ(actual.bits(), expected.bits());
    }
}

class CudaRmsNorm : public OnCuda {
  protected:
    template <class Y>
    void expect_reference(std::int64_t H, bool has_delta) {
        SCOPED_TRACE(testing::Message() << "H " << H << " delta " << has_delta);
        const Matrix<float> x = random_matrix<float>(3, H, 1, 5.0);
        const Matrix<float> delta = random_matrix<float>(3, H, 2);
        const Matrix<bf16> w = random_matrix<bf16>(1, H, 3);
        Matrix<float> x_expected = x;
        Matrix<float> x_actual = x;
        Matrix<Y> expected(3, H, 0x11);
        Matrix<Y> actual(3, H, 0x22);
        rmsnorm_ref(
            {.x = x_expected.view(),
             .delta = has_delta ? delta.view() : View2<const float>{},
             .w = &w(0, 0),
             .y = expected.view(),
             .eps = 1e-6f}
        );
        const OnDevice<float> x_there(x_actual, stream());
        const OnDevice<float> delta_there(delta, stream());
        const OnDevice<bf16> w_there(w, stream());
        const OnDevice<Y> y(actual, stream());
        rmsnorm_cuda(
            {.x = x_there.view(),
             .delta = has_delta ? View2<const float>(delta_there.view()) : View2<const float>{},
             .w = w_there.view().data,
             .y = y.view(),
             .eps = 1e-6f,
             .stream = stream()}
        );
        y.fetch(actual);
        x_there.fetch(x_actual);
        EXPECT_EQ(x_actual.bits(), x_expected.bits());
        // Squares are positive, so the sum errs relatively: ceil(H / 1024) * 4 sums in a thread, 5
        // in the warp, 8 over the warps; rsqrt 2 ulp; division, scaling and rounding 5 more.
        const double sums = std::ceil(static_cast<double>(H) / 1024.0) * 4.0 + 13.0;
        const double relative = (sums + 9.0) * kEps32 + 2.02 * rounding_of(kDTypeOf<Y>);
        expect_within(actual, expected, [&](std::int64_t r, std::int64_t c) {
            return relative * std::abs(expected.value(r, c));
        });
    }
};

TEST_F(CudaRmsNorm, MeetsTheReferenceOnAwkwardShapes) {
    for (const std::int64_t H : kWidths) {
        for (const bool has_delta : {false, true}) {
            expect_reference<float>(H, has_delta);
            expect_reference<bf16>(H, has_delta);
        }
    }
}

// The order of the sum is H's alone: not the number of rows, nor where a row lies.
TEST_F(CudaRmsNorm, P6_RowDependsOnNeitherBatchNorAddress) {
    for (const std::int64_t H : {1000, 1024, 4096, 8192}) {
        const Matrix<float> x = random_matrix<float>(9, H, 1);
        const Matrix<bf16> w = random_matrix<bf16>(1, H, 2);
        Matrix<float> x_shifted(2, H + 1, 0x7f);  // the same row, 4 bytes off
        for (std::int64_t i = 0; i < H; ++i) x_shifted(1, i + 1) = x(7, i);
        Matrix<float> batch(9, H, 0x11);
        Matrix<float> alone(1, H, 0x22);
        const OnDevice<bf16> w_there(w, stream());
        const OnDevice<float> x_there(x, stream());
        const OnDevice<float> batch_there(batch, stream());
        rmsnorm_cuda(
            {.x = x_there.view(),
             .w = w_there.view().data,
             .y = batch_there.view(),
             .eps = 1e-5f,
             .stream = stream()}
        );
        const OnDevice<float> shifted_there(x_shifted, stream());
        const OnDevice<float> alone_there(alone, stream());
        View2<float> row = rows(shifted_there.view(), 1, 1);
        row.data += 1;
        row.cols = H;
        rmsnorm_cuda(
            {.x = row,
             .w = w_there.view().data,
             .y = alone_there.view(),
             .eps = 1e-5f,
             .stream = stream()}
        );
        batch_there.fetch(batch);
        alone_there.fetch(alone);
        EXPECT_EQ(alone.bits(0), batch.bits(7)) << "H " << H;
    }
}

class CudaSiluMul : public OnCuda {
  protected:
    template <class X, class Y>
    void expect_reference(std::int64_t F, double deviation) {
        SCOPED_TRACE(testing::Message() << "F " << F << " deviation " << deviation);
        const Matrix<X> gate = random_matrix<X>(3, F, 1, deviation);
        const Matrix<X> up = random_matrix<X>(3, F, 2);
        Matrix<Y> expected(3, F, 0x11);
        Matrix<Y> actual(3, F, 0x22);
        silu_mul_ref({.gate = gate.view(), .up = up.view(), .y = expected.view()});
        const OnDevice<X> gate_there(gate, stream());
        const OnDevice<X> up_there(up, stream());
        const OnDevice<Y> y(actual, stream());
        silu_mul_cuda(
            {.gate = gate_there.view(), .up = up_there.view(), .y = y.view(), .stream = stream()}
        );
        y.fetch(actual);
        // exp and the fast division 2 ulp each, sum and product e each. Where the divisor leaves
        // the division's range (gate beyond -87) the result is below 88 * 2^-125, and may be 0.
        const double relative = 10.0 * kEps32 + 2.02 * rounding_of(kDTypeOf<Y>);
        expect_within(actual, expected, [&](std::int64_t r, std::int64_t c) {
            return relative * std::abs(expected.value(r, c)) +
                   88.0 * 0x1p-125 * std::abs(up.value(r, c));
        });
    }
};

TEST_F(CudaSiluMul, MeetsTheReferenceOnAwkwardShapes) {
    for (const std::int64_t F : {1, 7, 8, 24, 130, 2048, 2056, 4099}) {
        for (const double deviation : {1.0, 60.0}) {
            expect_reference<float, float>(F, deviation);
            expect_reference<float, bf16>(F, deviation);
            expect_reference<bf16, float>(F, deviation);
            expect_reference<bf16, bf16>(F, deviation);
        }
    }
}

class CudaGatherRows : public OnCuda {
  protected:
    template <class T>
    void expect_rows(std::int64_t H) {
        const Matrix<T> x = random_matrix<T>(11, H, 1);
        const std::vector<std::int32_t> index = {10, 0, 0, 5};
        Matrix<T> actual(4, H, 0x22);
        const OnDevice<T> x_there(x, stream());
        const OnDevice<T> y(actual, stream());
        const DeviceArray<std::int32_t> index_there(index, stream());
        gather_rows_cuda(
            {.x = x_there.view(),
             .row_index = index_there.data(),
             .y = y.view(),
             .stream = stream()}
        );
        y.fetch(actual);
        for (std::int64_t i = 0; i < 4; ++i)
            EXPECT_EQ(actual.bits(i), x.bits(index[static_cast<std::size_t>(i)])) << "H " << H;
    }
};
TEST_F(CudaGatherRows, CopiesTheRowsAskedFor) {
    for (const std::int64_t H : {1, 33, 128, 4096}) {
        expect_rows<float>(H);
        expect_rows<bf16>(H);
    }
}

using CudaCountNonfinite = OnCuda;
TEST_F(CudaCountNonfinite, CountsInEveryPlaceOfARow) {
    for (const std::int64_t V : {1, 15, 4096, 4097, 9000}) {
        SCOPED_TRACE(testing::Message() << "V " << V);
        Matrix<float> logits = random_matrix<float>(3, V, 1, 5.0);
        logits.view().data[0] = kInf;
        logits.view().data[V - 1] = std::numeric_limits<float>::quiet_NaN();
        row(logits.view(), 2)[static_cast<std::size_t>(V / 2)] = -kInf;
        std::vector<std::int32_t> expected(3);
        count_nonfinite_ref({.logits = logits.view(), .counts = expected.data()});
        ASSERT_EQ(expected, (std::vector<std::int32_t>{V == 1 ? 1 : 2, 0, 1}));
        const OnDevice<float> logits_there(logits, stream());
        const DeviceArray<std::int32_t> counts(std::vector<std::int32_t>(3, -7), stream());
        count_nonfinite_cuda(
            {.logits = logits_there.view(), .counts = counts.data(), .stream = stream()}
        );
        EXPECT_EQ(counts.fetch(), expected);
    }
}

using CudaPenalties = OnCuda;
TEST_F(CudaPenalties, MeetTheReferenceOnEveryRow) {
    const Matrix<float> logits = random_matrix<float>(3, 300, 1, 5.0);
    const std::vector<PenaltyRow> rows = {
        {.repetition = 1.3f, .frequency = 0.2f, .presence = 0.5f}, {}, {.repetition = 0.8f}};
    std::vector<TokenCount> counts;
    std::vector<LogitBias> biases;
    std::vector<std::int32_t> count_starts = {0};
    std::vector<std::int32_t> bias_starts = {0};
    for (int r = 0; r < 3; ++r) {
        for (std::int32_t i = 0; r != 1 && i < 250; ++i)  // also of other ranks: 100 .. 400 is here
            counts.push_back({.id = TokenId{2 * i + r}, .num_output = i % 5});
        for (std::int32_t i = 0; i < 150; ++i)
            biases.push_back(
                {.id = TokenId{3 * i}, .bias = i % 7 == 0 ? -kInf : 0.25f * static_cast<float>(i)}
            );
        count_starts.push_back(static_cast<std::int32_t>(counts.size()));
        bias_starts.push_back(static_cast<std::int32_t>(biases.size()));
    }
    Matrix<float> expected = logits;
    Matrix<float> actual = logits;
    PenaltyArgs args{
        .logits = expected.view(),
        .vocab_begin = 100,
        .rows = rows.data(),
        .count_starts = count_starts.data(),
        .counts = counts.data(),
        .bias_starts = bias_starts.data(),
        .biases = biases.data()};
    penalties_ref(args);
    const OnDevice<float> logits_there(actual, stream());
    const DeviceArray<PenaltyRow> rows_there(rows, stream());
    const DeviceArray<std::int32_t> count_starts_there(count_starts, stream());
    const DeviceArray<TokenCount> counts_there(counts, stream());
    const DeviceArray<std::int32_t> bias_starts_there(bias_starts, stream());
    const DeviceArray<LogitBias> biases_there(biases, stream());
    args.logits = logits_there.view();
    args.rows = rows_there.data();
    args.count_starts = count_starts_there.data();
    args.counts = counts_there.data();
    args.bias_starts = bias_starts_there.data();
    args.biases = biases_there.data();
    args.stream = stream();
    penalties_cuda(args);
    logits_there.fetch(actual);
    // There are up to six roundings, each of at most e of the largest number on the way.
    for (std::int64_t r = 0; r < 3; ++r) {
        for (std::int64_t i = 0; i < 300; ++i) {
            if (std::isinf(expected(r, i))) {
                EXPECT_EQ(actual(r, i), expected(r, i));
            } else {
                EXPECT_NEAR(actual(r, i), expected(r, i), 6.0 * kEps32 * 100.0);
            }
        }
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
