// Tests the ops that incoming weights pass through: shard_copy and scatter. (digest_test.cpp has
// the digest.) Some addresses and widths fit 16-byte loads, and some do not.
#include "tests/kernels/backend.h"

#include <cstring>

namespace pitstop::kernels::test {
namespace {

class ShardCopyOp : public OnBackend {
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
        const auto device_src = put(shifted);
        const auto dst = put(actual);
        copy.src = device_src.data() + shift;
        copy.dst = dst.view();
        ops().shard_copy({.copies = {&copy, 1}, .stream = stream()});
        dst.fetch(actual);
        for (std::int64_t i = 0; i < n; ++i) {
            ASSERT_EQ(actual(0, i).bits, expected(0, i).bits)
                << "element " << i << " of dtype " << static_cast<int>(dtype) << ", from byte "
                << shift;
        }
    }
};
PITSTOP_ON_BACKENDS(ShardCopyOp, Order::kDefault);

// Converts every bf16, every f16, and floats around every rounding decision, at odd addresses.
TEST_P(ShardCopyOp, ConvertsEveryValueAsTheReference) {
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
TEST_P(ShardCopyOp, CutsRangesOutOfHundredsOfTensors) {
    std::vector<Matrix<bf16>> sources, expected, actual;
    std::vector<PlacedMatrix<bf16>> device_sources, device_actual;
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
        device_sources.push_back(put(sources[i]));
        device_actual.push_back(put(actual[i]));
        ShardCopy copy{
            .src = &sources[i](0, static_cast<std::int64_t>(i % 2 * 8)),
            .src_stride = sources[i].view().stride,
            .dst = expected[i].view()};
        shard_copy_ref({.copies = {&copy, 1}});
        copy.src = device_sources[i].view().data + i % 2 * 8;
        copy.dst = device_actual[i].view();
        copies.push_back(copy);
    }
    copies.push_back({});  // an empty copy changes nothing
    ops().shard_copy({.copies = copies, .stream = stream()});
    for (std::size_t i = 0; i < num; ++i) {
        device_actual[i].fetch(actual[i]);
        ASSERT_EQ(actual[i].bits(), expected[i].bits()) << "tensor " << i;
    }
}

// Two dtypes in one call; a part of the first tensor's rows.
TEST_P(ShardCopyOp, CutsColumnRangesOutOfSeveralTensors) {
    const Matrix<float> a = random_matrix<float>(7, 50, 1);
    const Matrix<bf16> b = random_matrix<bf16>(3, 40, 2);
    Matrix<bf16> a_dst(7, 19, 0x22);
    Matrix<bf16> b_dst(3, 40, 0x33);
    const auto device_a = put(a);
    const auto device_b = put(b);
    const auto device_a_dst = put(a_dst);
    const auto device_b_dst = put(b_dst);
    const ShardCopy copies[] = {
        {.src = device_a.view().data + 20,
         .src_dtype = DType::kF32,
         .src_stride = a.view().stride,
         .dst = device_a_dst.view()},
        {.src = device_b.view().data,
         .src_dtype = DType::kBF16,
         .src_stride = b.view().stride,
         .dst = device_b_dst.view()},
    };
    ops().shard_copy({.copies = copies, .stream = stream()});
    device_a_dst.fetch(a_dst);
    device_b_dst.fetch(b_dst);
    for (std::int64_t r = 0; r < 7; ++r) {
        for (std::int64_t c = 0; c < 19; ++c) EXPECT_EQ(a_dst(r, c), to_bf16(a(r, 20 + c)));
    }
    EXPECT_EQ(b_dst.bits(), b.bits());
}

TEST_P(ShardCopyOp, BlocksThatTakeTilesInTurnLeaveNoneOut) {
    constexpr std::int64_t kLen = 3 * (16 << 10) + 24;  // elements: more tiles than blocks
    const Matrix<bf16> src = random_matrix<bf16>(2, kLen, 1);
    const auto device_src = put(src);
    for (const int blocks : {1, 2, 100}) {
        Matrix<bf16> actual(2, kLen, 0x22);
        const auto dst = put(actual);
        std::vector<ShardCopy> copies;
        for (std::int64_t r = 0; r < 2; ++r) {
            copies.push_back(
                {.src = row(device_src.view(), r).data(),
                 .src_stride = kLen,
                 .dst = rows(dst.view(), r, 1)}
            );
        }
        ops().shard_copy({.copies = copies, .blocks_max = blocks, .stream = stream()});
        dst.fetch(actual);
        for (std::int64_t r = 0; r < 2; ++r) EXPECT_EQ(actual.bits(r), src.bits(r)) << blocks;
    }
}

class Scatter : public OnBackend {};
PITSTOP_ON_BACKENDS(Scatter, Order::kDefault);

TEST_P(Scatter, ChangesItsElementsAloneAndCountsThoseThatWouldChange) {
    constexpr std::int64_t kLen = 1000;
    for (const std::int64_t num : {1, 255, 257, 900}) {
        Matrix<bf16> expected = random_matrix<bf16>(1, kLen, 1);
        const Matrix<bf16> values = random_matrix<bf16>(1, kLen, 2);
        std::vector<std::int64_t> at;
        for (std::int64_t i = 0; i < num; ++i) at.push_back(i * 7 % kLen);  // each place once
        Matrix<bf16> actual = random_matrix<bf16>(1, kLen, 1);
        const auto data = put(actual);
        const auto device_values = put(values);
        const auto device_at = put(at);
        const auto different = put(std::vector<std::uint64_t>{5});
        std::uint64_t num_different = 5;
        ScatterArgs args{
            .at = at.data(),
            .values = values.view().data,
            .num = num,
            .data = expected.view().data,
            .num_different = &num_different};
        ScatterArgs there{
            .at = device_at.data(),
            .values = device_values.view().data,
            .num = num,
            .data = data.view().data,
            .num_different = different.data(),
            .stream = stream()};
        scatter_ref(args);
        ops().scatter(there);
        EXPECT_EQ(different.fetch()[0], num_different);
        EXPECT_GT(num_different, 5u);
        args.num_different = there.num_different = nullptr;
        scatter_ref(args);
        ops().scatter(there);
        data.fetch(actual);
        EXPECT_EQ(actual.bits(0), expected.bits(0)) << num;
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
