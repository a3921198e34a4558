// Tests embedding, rmsnorm, silu_mul, gather_rows and shard_copy: the ops whose rows stand alone.
#include "tests/kernels/support.h"

#include <limits>

namespace pitstop::kernels::test {
namespace {

constexpr std::int64_t kWidths[] = {1, 7, 15, 16, 17, 24, 63, 64, 65, 128, 130, 1000};

class Embedding : public OnLevel {};
PITSTOP_ON_EVERY_LEVEL(Embedding);

TEST_P(Embedding, GivesItsRowsAndZerosForOtherRanks) {
    for (const std::int64_t H : kWidths) {
        SCOPED_TRACE(testing::Message() << "H " << H);
        const Matrix<bf16> table = random_matrix<bf16>(5, H, 1);
        const TokenId ids[] = {
            TokenId{10},
            TokenId{14},
            TokenId{9},
            TokenId{15},
            TokenId{-1},
            TokenId{12},
            TokenId{1 << 30}};
        Matrix<float> expected(7, H, 0x11);
        Matrix<float> actual(7, H, 0x22);
        embedding_ref({.ids = ids, .table = table.view(), .vocab_begin = 10, .y = expected.view()});
        ops().embedding(
            {.ids = ids,
             .table = table.view(),
             .vocab_begin = 10,
             .y = actual.view(),
             .stream = stream_of(pool_)}
        );
        EXPECT_EQ(actual.bits(), expected.bits());
        EXPECT_EQ(actual.value(1, 0), table.value(4, 0));
        EXPECT_EQ(actual.value(3, 0), 0.0);
    }
}

class RmsNorm : public OnLevel {};
PITSTOP_ON_EVERY_LEVEL(RmsNorm);

template <class Y>
void expect_rmsnorm(const Ops& ops, Stream stream, std::int64_t H, bool has_delta) {
    SCOPED_TRACE(testing::Message() << "H " << H << " delta " << has_delta);
    const Matrix<float> x = random_matrix<float>(9, H, 1, 5.0);
    const Matrix<float> delta = random_matrix<float>(9, H, 2);
    const Matrix<bf16> w = random_matrix<bf16>(1, H, 3);
    Matrix<float> x_expected = x;
    Matrix<float> x_actual = x;
    Matrix<Y> expected(9, H, 0x11);
    Matrix<Y> actual(9, H, 0x22);
    const View2<const float> added = has_delta ? delta.view() : View2<const float>{};
    rmsnorm_ref(
        {.x = x_expected.view(), .delta = added, .w = &w(0, 0), .y = expected.view(), .eps = 1e-6f}
    );
    ops.rmsnorm(
        {.x = x_actual.view(),
         .delta = added,
         .w = &w(0, 0),
         .y = actual.view(),
         .eps = 1e-6f,
         .stream = stream}
    );
    EXPECT_EQ(x_actual.bits(), x_expected.bits());
    // All squares are positive, so the sum errs relatively: H/64 sums in a lane, 6 in the tree
    // (twice in scalar, whose products round too); the root halves it; division, scaling and
    // rounding add 5.
    const double relative =
        (static_cast<double>(H) / 64.0 + 12.0) * kEps32 + 2.02 * rounding_of(kDTypeOf<Y>);
    expect_within(actual, expected, [&](std::int64_t r, std::int64_t c) {
        return relative * std::abs(expected.value(r, c));
    });
}

TEST_P(RmsNorm, MeetsTheReferenceOnAwkwardShapes) {
    for (const std::int64_t H : kWidths) {
        for (const bool has_delta : {false, true}) {
            expect_rmsnorm<float>(ops(), stream_of(pool_), H, has_delta);
            expect_rmsnorm<bf16>(ops(), stream_of(pool_), H, has_delta);
        }
    }
}

TEST_P(RmsNorm, ARowOfZerosStaysZero) {
    Matrix<float> x(1, 64, 0);
    const Matrix<bf16> w = random_matrix<bf16>(1, 64, 3);
    ops().rmsnorm({.x = x.view(), .w = &w(0, 0), .y = x.view(), .eps = 1e-6f});
    for (std::int64_t i = 0; i < 64; ++i) EXPECT_EQ(x.value(0, i), 0.0);
}

TEST_P(RmsNorm, P6_RowDoesNotDependOnBatch) {
    for (const std::int64_t H : kWidths) {
        Matrix<float> x = random_matrix<float>(333, H, 1);
        Matrix<float> x_alone(2, H, 0x7f);  // the row at another address, of another alignment
        for (std::int64_t i = 0; i < H; ++i) x_alone(1, i) = x(7, i);
        const Matrix<bf16> w = random_matrix<bf16>(1, H, 2);
        Matrix<float> alone(1, H, 0x11);
        Matrix<float> batch(333, H, 0x22);
        ops().rmsnorm({.x = x_alone.rows(1, 1), .w = &w(0, 0), .y = alone.view(), .eps = 1e-5f});
        ops().rmsnorm({
            .x = x.view(),
            .w = &w(0, 0),
            .y = batch.view(),
            .eps = 1e-5f,
            .stream = stream_of(pool_),
        });
        EXPECT_EQ(alone.bits(0), batch.bits(7)) << "H " << H;
    }
}

class SiluMul : public OnLevel {};
PITSTOP_ON_EVERY_LEVEL(SiluMul);

template <class X, class Y>
void expect_silu(const Ops& ops, Stream stream, std::int64_t F, double deviation) {
    SCOPED_TRACE(testing::Message() << "F " << F << " deviation " << deviation);
    const Matrix<X> gate = random_matrix<X>(5, F, 1, deviation);
    const Matrix<X> up = random_matrix<X>(5, F, 2);
    Matrix<Y> expected(5, F, 0x11);
    Matrix<Y> actual(5, F, 0x22);
    silu_mul_ref({.gate = gate.view(), .up = up.view(), .y = expected.view()});
    ops.silu_mul({.gate = gate.view(), .up = up.view(), .y = actual.view(), .stream = stream});
    // exp errs by 2^-22, sum, quotient and product by e each. Where exp leaves fp32's range (gate
    // beyond -87) the result is below 88 * 2^-126, and may differ by that.
    const double relative = 0x1p-22 + 4.0 * kEps32 + 2.02 * rounding_of(kDTypeOf<Y>);
    expect_within(actual, expected, [&](std::int64_t r, std::int64_t c) {
        return relative * std::abs(expected.value(r, c)) +
               88.0 * 0x1p-125 * std::abs(up.value(r, c));
    });
}

TEST_P(SiluMul, MeetsTheReferenceOnAwkwardShapes) {
    for (const std::int64_t F : kWidths) {
        for (const double deviation : {1.0, 60.0}) {
            expect_silu<float, float>(ops(), stream_of(pool_), F, deviation);
            expect_silu<float, bf16>(ops(), stream_of(pool_), F, deviation);
            expect_silu<bf16, float>(ops(), stream_of(pool_), F, deviation);
            expect_silu<bf16, bf16>(ops(), stream_of(pool_), F, deviation);
        }
    }
}

class GatherRows : public OnLevel {};
PITSTOP_ON_EVERY_LEVEL(GatherRows);

TEST_P(GatherRows, CopiesTheRowsAskedFor) {
    const Matrix<float> x = random_matrix<float>(11, 33, 1);
    const std::int32_t index[] = {10, 0, 0, 5};
    Matrix<float> y(4, 33, 0x22);
    ops().gather_rows({.x = x.view(), .row_index = index, .y = y.view(), .stream = stream_of(pool_)}
    );
    for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(y.bits(i), x.bits(index[i]));
}

class CountNonfinite : public OnLevel {};
PITSTOP_ON_EVERY_LEVEL(CountNonfinite);

TEST_P(CountNonfinite, CountsInfinitiesAndNaNsOfEachRow) {
    Matrix<float> logits = random_matrix<float>(4, 37, 1);
    row(logits.view(), 1)[0] = std::numeric_limits<float>::infinity();
    row(logits.view(), 1)[36] = -std::numeric_limits<float>::infinity();
    row(logits.view(), 3)[16] = std::numeric_limits<float>::quiet_NaN();
    std::vector<std::int32_t> counts(4, -7);
    ops().count_nonfinite(
        {.logits = logits.view(), .counts = counts.data(), .stream = stream_of(pool_)}
    );
    EXPECT_EQ(counts, (std::vector<std::int32_t>{0, 2, 0, 1}));
}

class ShardCopyOp : public OnLevel {};
PITSTOP_ON_EVERY_LEVEL(ShardCopyOp);

// It converts every bf16, every f16, and floats around every rounding decision, at an odd address.
TEST_P(ShardCopyOp, ConvertsEveryValueAsTheReference) {
    std::vector<std::uint32_t> floats;
    for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
        for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
            floats.push_back(upper << 16 | lower);
    }
    std::vector<std::uint16_t> halves(0x10000);
    for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);

    const auto run = [&](DType dtype, const void* src, std::int64_t n) {
        std::vector<std::byte> shifted(static_cast<std::size_t>(n * size_of(dtype)) + 1);
        std::memcpy(shifted.data() + 1, src, static_cast<std::size_t>(n * size_of(dtype)));
        Matrix<bf16> expected(1, n, 0x11);
        Matrix<bf16> actual(1, n, 0x22);
        const ShardCopy to_expected{
            .src = shifted.data() + 1, .src_dtype = dtype, .src_stride = n, .dst = expected.view()};
        const ShardCopy to_actual{
            .src = shifted.data() + 1, .src_dtype = dtype, .src_stride = n, .dst = actual.view()};
        shard_copy_ref({.copies = {&to_expected, 1}});
        ops().shard_copy({.copies = {&to_actual, 1}, .stream = stream_of(pool_)});
        for (std::int64_t i = 0; i < n; ++i) {
            ASSERT_EQ(actual(0, i).bits, expected(0, i).bits)
                << "element " << i << " of dtype " << static_cast<int>(dtype);
        }
    };
    run(DType::kF32, floats.data(), static_cast<std::int64_t>(floats.size()));
    run(DType::kF16, halves.data(), static_cast<std::int64_t>(halves.size()));
    run(DType::kBF16, halves.data(), static_cast<std::int64_t>(halves.size()));
}

TEST_P(ShardCopyOp, CutsColumnRangesOutOfSeveralTensors) {
    const Matrix<float> a = random_matrix<float>(7, 50, 1);
    const Matrix<bf16> b = random_matrix<bf16>(3, 40, 2);
    Matrix<bf16> a_dst(7, 19, 0x22);
    Matrix<bf16> b_dst(3, 40, 0x33);
    const ShardCopy copies[] = {
        {.src = &a(0, 20),
         .src_dtype = DType::kF32,
         .src_stride = a.view().stride,
         .dst = a_dst.view()},
        {.src = &b(0, 0),
         .src_dtype = DType::kBF16,
         .src_stride = b.view().stride,
         .dst = b_dst.view()},
    };
    ops().shard_copy({.copies = copies, .stream = stream_of(pool_)});
    for (std::int64_t r = 0; r < 7; ++r) {
        for (std::int64_t c = 0; c < 19; ++c) EXPECT_EQ(a_dst(r, c), to_bf16(a(r, 20 + c)));
    }
    EXPECT_EQ(b_dst.bits(), b.bits());
}

}  // namespace
}  // namespace pitstop::kernels::test
