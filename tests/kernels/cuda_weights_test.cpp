// Tests the CUDA ops that weights go through on their way in against their references: digest,
// shard_copy, scatter. Some addresses and widths fit 16-byte loads, and some do not.
#include "tests/kernels/cuda_support.h"

#include <cstring>
#include <random>

namespace pitstop::kernels::test {
namespace {

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
