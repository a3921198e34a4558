// Tests the CUDA ops whose rows stand alone against their references: embedding, rmsnorm, silu_mul,
// gather_rows, penalties, rope, digest, shard_copy, scatter. Some widths fit 16-byte loads, and
// some do not.
#include "tests/kernels/cuda_support.h"

#include <limits>
#include <random>

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

struct RopeHeads {
    std::int32_t Q;
    std::int32_t K;
    std::int32_t D;
};
class CudaRope : public OnCuda {
  protected:
    template <class X, class Kv>
    void expect_reference(const RopeHeads& heads, std::int32_t half, bool has_norm);
};

template <class X, class Kv>
void CudaRope::expect_reference(const RopeHeads& heads, std::int32_t half, bool has_norm) {
    SCOPED_TRACE(testing::Message() << "D " << heads.D << " R/2 " << half << " norm " << has_norm);
    const std::int64_t T = 9;
    const Matrix<X> q = random_matrix<X>(T, heads.Q * heads.D, 1);
    const Matrix<X> k = random_matrix<X>(T, heads.K * heads.D, 2);
    const Matrix<X> v = random_matrix<X>(T, heads.K * heads.D, 3);
    const Matrix<bf16> norm = random_matrix<bf16>(2, heads.D, 4);
    Matrix<float> cos(100, half, 0x7f);
    Matrix<float> sin(100, half, 0x7f);
    for (std::int64_t p = 0; p < 100; ++p) {
        for (std::int64_t i = 0; i < half; ++i) {
            const double angle =
                static_cast<double>(p) *
                std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
            cos(p, i) = static_cast<float>(std::cos(angle));
            sin(p, i) = static_cast<float>(std::sin(angle));
        }
    }
    const std::vector<std::int32_t> positions = {0, 1, 2, 50, 99, 3, 4, 5, 6};
    const std::vector<std::int64_t> slots = {7, 6, 13, 2, 20, 0, 1, 5, 8};  // pages of 3
    KvCache kv{
        .dtype = kDTypeOf<Kv>,
        .num_pages = 7,
        .page_size = 3,
        .num_kv_heads = heads.K,
        .head_dim = heads.D};
    Matrix<Kv> expected_kv(1, page_elements(kv) * kv.num_pages, 0x31);
    Matrix<Kv> actual_kv(1, page_elements(kv) * kv.num_pages, 0x31);
    Matrix<Kv> expected_q(T, heads.Q * heads.D, 0x11);
    Matrix<Kv> actual_q(T, heads.Q * heads.D, 0x22);
    RopeArgs args{
        .q = q.view(),
        .k = k.view(),
        .v = v.view(),
        .q_out = expected_q.view(),
        .kv = kv,
        .slots = slots.data(),
        .positions = positions.data(),
        .cos = cos.view(),
        .sin = sin.view(),
        .q_norm = has_norm ? &norm(0, 0) : nullptr,
        .k_norm = has_norm ? &norm(1, 0) : nullptr,
        .norm_eps = 1e-6f};
    args.kv.data = &expected_kv(0, 0);
    rope_ref(args);

    const OnDevice<X> q_there(q, stream()), k_there(k, stream()), v_there(v, stream());
    const OnDevice<Kv> q_out(actual_q, stream()), kv_there(actual_kv, stream());
    const OnDevice<float> cos_there(cos, stream()), sin_there(sin, stream());
    const OnDevice<bf16> norm_there(norm, stream());
    const DeviceArray<std::int64_t> slots_there(slots, stream());
    const DeviceArray<std::int32_t> positions_there(positions, stream());
    args.q = q_there.view();
    args.k = k_there.view();
    args.v = v_there.view();
    args.q_out = q_out.view();
    args.kv.data = kv_there.view().data;
    args.slots = slots_there.data();
    args.positions = positions_there.data();
    args.cos = cos_there.view();
    args.sin = sin_there.view();
    args.q_norm = has_norm ? norm_there.view().data : nullptr;
    args.k_norm = has_norm ? norm_there.view().data + norm_there.view().stride : nullptr;
    args.stream = stream();
    rope_cuda(args);
    q_out.fetch(actual_q);
    kv_there.fetch(actual_kv);
    // The norm errs by (D/32 + 14) e relatively; a rotation is two products and a sum of numbers up
    // to 6 * 4 (a normal number times a normal weight).
    const double scale = has_norm ? 24.0 : 6.0;
    const double bound = scale * 2.0 * (heads.D / 32.0 + 18.0) * kEps32;
    const auto bound_of = [&](double value) {
        return bound + 2.02 * rounding_of(kDTypeOf<Kv>) * std::abs(value);
    };
    expect_within(actual_q, expected_q, [&](std::int64_t r, std::int64_t c) {
        return bound_of(expected_q.value(r, c));
    });
    for (std::int64_t i = 0; i < expected_kv.num_cols(); ++i) {
        const double expected = expected_kv.value(0, i);
        if (std::isnan(expected)) continue;  // the garbage
        ASSERT_NEAR(actual_kv.value(0, i), expected, bound_of(expected)) << "KV element " << i;
    }
}

TEST_F(CudaRope, MeetsTheReferenceOnAwkwardShapes) {
    for (const bool has_norm : {false, true}) {
        expect_reference<bf16, bf16>({4, 2, 128}, 64, has_norm);
        expect_reference<float, bf16>({4, 2, 128}, 64, has_norm);
        expect_reference<float, bf16>({6, 2, 64}, 32, has_norm);
        expect_reference<bf16, bf16>({3, 1, 256}, 128, has_norm);
        expect_reference<float, bf16>({37, 5, 64}, 32, has_norm);
        expect_reference<float, float>({4, 2, 128}, 64, has_norm);
        expect_reference<float, bf16>({4, 2, 128}, 32, has_norm);  // half of the head is rotated
        expect_reference<bf16, bf16>({5, 1, 80}, 40, has_norm);
        expect_reference<float, float>({2, 2, 6}, 3, has_norm);
    }
}

class CudaDigest : public OnCuda {
  protected:
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
        const DeviceArray<std::uint8_t> bytes_there(bytes, stream());
        Digest expected{.lane0 = 5, .lane1 = 7};
        const DeviceArray<Digest> sum(std::vector<Digest>{expected}, stream());
        std::uint64_t expected_nonfinite = 3;
        const DeviceArray<std::uint64_t> num_nonfinite(
            std::vector<std::uint64_t>{expected_nonfinite}, stream()
        );
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
        args.data = bytes_there.data() + shift;
        args.sum = sum.data();
        args.num_nonfinite = num_nonfinite.data();
        args.stream = stream();
        digest_cuda(args);
        EXPECT_EQ(sum.fetch()[0], expected);
        EXPECT_EQ(num_nonfinite.fetch()[0], expected_nonfinite);
    }
};

TEST_F(CudaDigest, IsTheReferencesForAnyShapeAndAddress) {
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

TEST_F(CudaDigest, ShardsAddUpToTheTensor) {
    std::vector<std::uint8_t> bytes(64 * 256);
    for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<std::uint8_t>(i * 37 >> 3);
    Digest expected{};
    digest_ref(
        {.data = bytes.data(),
         .rows = 64,
         .row_bytes = 256,
         .row_stride_bytes = 256,
         .words_per_row = 32,
         .sum = &expected}
    );
    const DeviceArray<std::uint8_t> there(bytes, stream());
    const DeviceArray<Digest> sum(std::vector<Digest>{{}}, stream());
    for (std::int64_t shard = 0; shard < 4; ++shard) {
        digest_cuda(
            {.data = there.data() + shard * 64,
             .rows = 64,
             .row_bytes = 64,
             .row_stride_bytes = 256,
             .first_word = static_cast<std::uint64_t>(shard) * 8,
             .words_per_row = 32,
             .sum = sum.data(),
             .stream = stream()}
        );
    }
    EXPECT_EQ(sum.fetch()[0], expected);
}

TEST_F(CudaDigest, BlocksThatTakeTilesInTurnLeaveNoneOut) {
    constexpr std::int64_t kBytes =
        5 * (32 << 10) + 40;  // more tiles than blocks, the last not full
    std::vector<std::uint8_t> bytes(kBytes);
    for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<std::uint8_t>(i * 37 >> 3);
    DigestArgs args{
        .data = bytes.data(),
        .rows = 1,
        .row_bytes = kBytes,
        .row_stride_bytes = kBytes,
        .words_per_row = digest_words(kBytes)};
    Digest expected{};
    args.sum = &expected;
    digest_ref(args);
    const DeviceArray<std::uint8_t> there(bytes, stream());
    for (const int blocks : {1, 2, 4, 100}) {
        const DeviceArray<Digest> sum(std::vector<Digest>{{}}, stream());
        args.data = there.data();
        args.sum = sum.data();
        args.blocks_max = blocks;
        args.stream = stream();
        digest_cuda(args);
        EXPECT_EQ(sum.fetch()[0], expected) << blocks << " blocks";
    }
}

class CudaShardCopy : public OnCuda {
  protected:
    // Compares `n` elements at an address `shift` bytes off.
    void expect_values(DType dtype, const void* src, std::int64_t n, std::int64_t shift) {
        const auto bytes = static_cast<std::size_t>(n * size_of(dtype));
        std::vector<std::byte> shifted(bytes + 16);
        std::memcpy(shifted.data() + shift, src, bytes);
        Matrix<bf16> expected(1, n, 0x11);
        Matrix<bf16> actual(1, n, 0x22);
        ShardCopy copy{
            .src = shifted.data() + shift,
            .src_dtype = dtype,
            .src_stride = n,
            .dst = expected.view()};
        shard_copy_ref({.copies = {&copy, 1}});
        const DeviceArray<std::byte> src_there(shifted, stream());
        const OnDevice<bf16> dst(actual, stream());
        copy.src = src_there.data() + shift;
        copy.dst = dst.view();
        shard_copy_cuda({.copies = {&copy, 1}, .stream = stream()});
        dst.fetch(actual);
        for (std::int64_t i = 0; i < n; ++i) {
            ASSERT_EQ(actual(0, i).bits, expected(0, i).bits)
                << "element " << i << " of dtype " << static_cast<int>(dtype) << ", from byte "
                << shift;
        }
    }
};

TEST_F(CudaShardCopy, ConvertsEveryValueAsTheReference) {
    std::vector<std::uint32_t> floats;
    for (std::uint32_t upper = 0; upper < 0x10000; upper += is_small() ? 7u : 1u) {
        for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
            floats.push_back(upper << 16 | lower);
    }
    std::vector<std::uint16_t> halves(0x10000);
    for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
    for (const std::int64_t shift : {0, 1, 2}) {
        expect_values(DType::kF32, floats.data(), static_cast<std::int64_t>(floats.size()), shift);
        expect_values(DType::kF16, halves.data(), 0x10000, shift);
        expect_values(DType::kBF16, halves.data(), 0x10000, shift);
    }
}

// More tensors than one launch takes, of many shapes, cut out of wider ones.
TEST_F(CudaShardCopy, CutsRangesOutOfHundredsOfTensors) {
    std::vector<Matrix<bf16>> sources, expected, actual;
    std::vector<OnDevice<bf16>> sources_there, actual_there;
    std::vector<ShardCopy> copies;
    const int num = 130;
    for (int i = 0; i < num; ++i) {
        const std::int64_t rows_of = 1 + i % 9;
        const std::int64_t cols_of = i % 3 == 0 ? 8 * (1 + i % 5) : 1 + i * 7 % 300;
        sources.push_back(random_matrix<bf16>(rows_of, cols_of + 16, static_cast<unsigned>(i)));
        expected.emplace_back(rows_of, cols_of, 0x11);
        actual.emplace_back(rows_of, cols_of, 0x22);
    }
    for (std::size_t i = 0; i < num; ++i) {
        sources_there.emplace_back(sources[i], stream());
        actual_there.emplace_back(actual[i], stream());
        ShardCopy copy{
            .src = &sources[i](0, static_cast<std::int64_t>(i % 2 * 8)),
            .src_stride = sources[i].view().stride,
            .dst = expected[i].view()};
        shard_copy_ref({.copies = {&copy, 1}});
        copy.src = sources_there[i].view().data + i % 2 * 8;
        copy.dst = actual_there[i].view();
        copies.push_back(copy);
    }
    copies.push_back({});  // an empty one changes nothing
    shard_copy_cuda({.copies = copies, .stream = stream()});
    for (std::size_t i = 0; i < num; ++i) {
        actual_there[i].fetch(actual[i]);
        ASSERT_EQ(actual[i].bits(), expected[i].bits()) << "tensor " << i;
    }
}

TEST_F(CudaShardCopy, BlocksThatTakeTilesInTurnLeaveNoneOut) {
    constexpr std::int64_t kLen = 3 * (16 << 10) + 24;  // elements: more tiles than blocks
    const Matrix<bf16> src = random_matrix<bf16>(2, kLen, 1);
    const OnDevice<bf16> src_there(src, stream());
    for (const int blocks : {1, 2, 100}) {
        Matrix<bf16> actual(2, kLen, 0x22);
        const OnDevice<bf16> dst(actual, stream());
        std::vector<ShardCopy> copies;
        for (std::int64_t r = 0; r < 2; ++r) {
            copies.push_back(
                {.src = row(src_there.view(), r).data(),
                 .src_stride = kLen,
                 .dst = rows(dst.view(), r, 1)}
            );
        }
        shard_copy_cuda({.copies = copies, .blocks_max = blocks, .stream = stream()});
        dst.fetch(actual);
        for (std::int64_t r = 0; r < 2; ++r) EXPECT_EQ(actual.bits(r), src.bits(r)) << blocks;
    }
}

using CudaScatter = OnCuda;
TEST_F(CudaScatter, ChangesItsElementsAloneAndCountsThoseThatWouldChange) {
    constexpr std::int64_t kLen = 1000;
    for (const std::int64_t num : {1, 255, 257, 900}) {
        Matrix<bf16> expected = random_matrix<bf16>(1, kLen, 1);
        const Matrix<bf16> values = random_matrix<bf16>(1, kLen, 2);
        std::vector<std::int64_t> at;
        for (std::int64_t i = 0; i < num; ++i) at.push_back(i * 7 % kLen);  // each once
        Matrix<bf16> actual = random_matrix<bf16>(1, kLen, 1);
        const OnDevice<bf16> data(actual, stream());
        const OnDevice<bf16> values_there(values, stream());
        const DeviceArray<std::int64_t> at_there(at, stream());
        const DeviceArray<std::uint64_t> different(std::vector<std::uint64_t>{5}, stream());
        std::uint64_t num_different = 5;
        ScatterArgs args{
            .at = at.data(),
            .values = values.view().data,
            .num = num,
            .data = expected.view().data,
            .num_different = &num_different};
        ScatterArgs there{
            .at = at_there.data(),
            .values = values_there.view().data,
            .num = num,
            .data = data.view().data,
            .num_different = different.data(),
            .stream = stream()};
        scatter_ref(args);
        scatter_cuda(there);
        EXPECT_EQ(different.fetch()[0], num_different);
        EXPECT_GT(num_different, 5u);
        args.num_different = there.num_different = nullptr;
        scatter_ref(args);
        scatter_cuda(there);
        data.fetch(actual);
        EXPECT_EQ(actual.bits(0), expected.bits(0)) << num;
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
