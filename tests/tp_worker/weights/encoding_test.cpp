#include "tp_worker/weights/encoding.h"

#include "base/bf16.h"
#include "kernels/ops.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr Encoding kBf16 = Encoding::kBf16;

template <class T>
std::vector<std::byte> bytes_of_values(const std::vector<T>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

// The expected bits are IEEE's: the upper half of an fp32, to nearest, ties to even.
TEST(Encoding, ConvertsWhatArrivesToTheNearestBf16) {
    struct Case {
        checkpoint::StoredDtype dtype{};
        std::vector<std::byte> stored{};
        std::vector<std::uint16_t> expected{};
    };
    const std::vector<Case> cases{
        {checkpoint::StoredDtype::kF32,
         bytes_of_values(std::vector<float>{1.00390625f, 1.01171875f, -3.1415927f}),
         {0x3f80, 0x3f82, 0xc049}},
        {checkpoint::StoredDtype::kF16,
         bytes_of_values(std::vector<std::uint16_t>{0x3c00, 0xc248, 0x0001}),
         {0x3f80, 0xc049, 0x3380}},
        {checkpoint::StoredDtype::kBf16,
         bytes_of_values(std::vector<std::uint16_t>{0x7fc1, 0x0001, 0xff80}),
         {0x7fc1, 0x0001, 0xff80}},
    };
    for (const Case& each : cases) {
        const auto num = static_cast<std::int64_t>(each.expected.size());
        std::vector<std::uint16_t> encoded(each.expected.size(), 0xaaaa);
        encode(
            kBf16, each.dtype, each.stored.data(), num, reinterpret_cast<std::byte*>(encoded.data())
        );
        EXPECT_EQ(encoded, each.expected);
        // The ops that fill a shard give the same values, for a rectangle with strides.
        std::vector<std::uint16_t> shard(each.expected.size() + 1, 0xaaaa);
        std::vector<kernels::ShardCopy> copies;
        add_conversions(
            kBf16,
            {.dtype = each.dtype,
             .from = each.stored.data(),
             .from_stride = num,
             .to = reinterpret_cast<std::byte*>(shard.data()),
             .to_stride = num + 1,
             .rows = 1,
             .cols = num},
            copies
        );
        kernels::reference_ops()->shard_copy({.copies = copies});
        EXPECT_EQ(shard.back(), 0xaaaa);
        shard.pop_back();
        EXPECT_EQ(shard, each.expected);
    }
}

// F32 has all of BF16's and F16's values, bit for bit in its upper half or by IEEE 754's widening.
TEST(Encoding, F32HoldsWhatArrivesExactly) {
    const auto widened = [](checkpoint::StoredDtype dtype, const std::vector<std::byte>& stored) {
        std::vector<float> values(3, -1.0f);
        encode(
            Encoding::kF32, dtype, stored.data(), 3, reinterpret_cast<std::byte*>(values.data())
        );
        // A rectangle of three rows and one column, with strides, has the same values.
        std::vector<float> shard(6, -1.0f);
        convert(
            Encoding::kF32,
            {.dtype = dtype,
             .from = stored.data(),
             .from_stride = 1,
             .to = reinterpret_cast<std::byte*>(shard.data()),
             .to_stride = 2,
             .rows = 3,
             .cols = 1},
            *kernels::reference_ops(),
            {}
        );
        EXPECT_EQ(shard, (std::vector{values[0], -1.0f, values[1], -1.0f, values[2], -1.0f}));
        return values;
    };
    using checkpoint::StoredDtype;
    EXPECT_EQ(
        widened(StoredDtype::kF32, bytes_of_values(std::vector{1.1f, -3.1415927f, 1e-40f})),
        (std::vector{1.1f, -3.1415927f, 1e-40f})
    );
    EXPECT_EQ(
        widened(
            StoredDtype::kF16, bytes_of_values(std::vector<std::uint16_t>{0x3c00, 0xc248, 0x0001})
        ),
        (std::vector{1.0f, -3.140625f, 0x1p-24f})
    );
    EXPECT_EQ(
        widened(
            StoredDtype::kBf16, bytes_of_values(std::vector<std::uint16_t>{0x3f80, 0xc049, 0x0001})
        ),
        (std::vector{1.0f, -3.140625f, 0x1p-133f})
    );
}

TEST(Encoding, CountsWhatIsNotFiniteOfF32) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    const std::vector<float> values{1.0f, kInf, 7.0f, std::nanf(""), -kInf, 7.0f};
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    EXPECT_EQ(count_nonfinite_f32(bytes, 2, 3, 3 * sizeof(float)), 3u);
    EXPECT_EQ(count_nonfinite_f32(bytes, 2, 1, 3 * sizeof(float)), 1u)
        << "the third of a row is not its";
    EXPECT_EQ(find_nonfinite(Encoding::kF32, std::span(bytes, sizeof(float))).has_value(), false);
    EXPECT_EQ(find_nonfinite(Encoding::kF32, std::span(bytes, 6 * sizeof(float)))->index, 1);
}

TEST(Encoding, AcceptsTheDtypesThatItNamesAndNoOther) {
    std::vector<std::string_view> accepted;
    for (int i = 0; i <= static_cast<int>(checkpoint::StoredDtype::kC64); ++i) {
        const auto dtype = static_cast<checkpoint::StoredDtype>(i);
        const bool is_named = accepted_dtypes(kBf16).find(name_of(dtype)) != std::string_view::npos;
        // "BF16" contains "F16", so the whole list of names is compared below, too.
        if (is_accepted(kBf16, dtype)) accepted.push_back(name_of(dtype));
        EXPECT_EQ(is_accepted(kBf16, dtype), is_named) << name_of(dtype);
    }
    EXPECT_EQ(accepted, (std::vector<std::string_view>{"BF16", "F16", "F32"}));
    EXPECT_TRUE(is_stored_as(kBf16, checkpoint::StoredDtype::kBf16));
    EXPECT_FALSE(is_stored_as(kBf16, checkpoint::StoredDtype::kF16));  // as many bytes, other bits
    EXPECT_EQ(name_of(kBf16), "BF16");
}

TEST(Encoding, FindsTheFirstValueThatIsNotFinite) {
    std::vector<bf16> values(9, to_bf16(1.f));
    const auto find = [&] { return find_nonfinite(kBf16, std::as_bytes(std::span(values))); };
    EXPECT_FALSE(find());
    values[8] = to_bf16(-std::numeric_limits<float>::infinity());
    ASSERT_TRUE(find());
    EXPECT_EQ(find()->index, 8);
    EXPECT_EQ(find()->value, -std::numeric_limits<float>::infinity());
    values[3] = to_bf16(std::numeric_limits<float>::quiet_NaN());
    EXPECT_EQ(find()->index, 3);
    EXPECT_TRUE(std::isnan(find()->value));
    EXPECT_FALSE(find_nonfinite(kBf16, {}));
}

// A GPU's ops write bf16 only, so F32 is converted in halves; elements outside the shard are
// unchanged.
TEST(Encoding, OpsConvertToF32ByHalves) {
    using checkpoint::StoredDtype;
    const std::vector<float> values{1.5f, -3.1415927f, 0x1p-130f, 7.f, 8.f, 9.f};
    std::vector<std::uint16_t> uppers;
    for (const float value : values)
        uppers.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
    const auto converted = [&](StoredDtype dtype, const void* from) {
        std::vector<float> shard(9, 0.f);
        shard[3] = shard[4] = -1.f;  // outside the rectangle
        std::vector<kernels::ShardCopy> copies;
        add_conversions(
            Encoding::kF32,
            {.dtype = dtype,
             .from = static_cast<const std::byte*>(from),
             .from_stride = 3,
             .to = reinterpret_cast<std::byte*>(shard.data()),
             .to_stride = 5,
             .rows = 2,
             .cols = 3},
            copies
        );
        kernels::reference_ops()->shard_copy({.copies = copies});
        return shard;
    };
    const auto placed = [](const std::vector<float>& v) {
        return std::vector<float>{v[0], v[1], v[2], -1.f, -1.f, v[3], v[4], v[5], 0.f};
    };
    EXPECT_EQ(converted(StoredDtype::kF32, values.data()), placed(values));
    std::vector<float> rounded;
    for (const std::uint16_t upper : uppers)
        rounded.push_back(std::bit_cast<float>(std::uint32_t{upper} << 16));
    EXPECT_EQ(converted(StoredDtype::kBf16, uppers.data()), placed(rounded));
    EXPECT_FALSE(is_converted_by_ops(Encoding::kF32, StoredDtype::kF16));
    EXPECT_TRUE(is_converted_by_ops(kBf16, StoredDtype::kF16));
    EXPECT_EQ(num_halves(Encoding::kF32), 2);
    EXPECT_EQ(num_halves(kBf16), 1);
}

TEST(Encoding, ScattersElementsAsTheyAreResident) {
    std::vector<std::uint16_t> shard(5, 0x1111);
    const std::vector<std::uint16_t> values{0x2222, 0x3333};
    const std::vector<std::int64_t> at{4, 1};
    kernels::ScatterArgs args = scatter_of(
        reinterpret_cast<const std::byte*>(values.data()),
        reinterpret_cast<std::byte*>(shard.data())
    );
    args.at = at.data();
    args.num = 2;
    kernels::reference_ops()->scatter(args);
    EXPECT_EQ(shard, (std::vector<std::uint16_t>{0x1111, 0x3333, 0x1111, 0x1111, 0x2222}));
    EXPECT_EQ(bytes_of(kBf16, 7), 14);
    EXPECT_EQ(word_len(kBf16), 4);
}

}  // namespace
}  // namespace pitstop::tp_worker
