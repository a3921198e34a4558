#include "tp_worker/weights/exact_bf16.h"

#include "base/bf16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace pitstop::tp_worker {
namespace {

// 65536 of these are all bf16 numbers: denormal ones, and those that are not finite, too.
bf16 bf16_number(std::size_t i) { return {static_cast<std::uint16_t>(i * 40'503 + 1)}; }

std::vector<float> as_fp32(std::size_t num) {
    std::vector<float> numbers(num);
    for (std::size_t i = 0; i < num; ++i) numbers[i] = to_float(bf16_number(i));
    return numbers;
}

std::vector<std::uint32_t> bits_of(const std::vector<float>& numbers) {
    std::vector<std::uint32_t> bits;
    for (const float number : numbers) bits.push_back(std::bit_cast<std::uint32_t>(number));
    return bits;
}

// Around whole blocks, and up to several of them.
const std::vector<std::size_t> kSizes{0, 1, 2, 3, 1023, 1024, 1025, 2048, 5000, 65536};

TEST(ExactBf16, NarrowedNumbersAreTheFirstHalfAndWidenToTheSameBits) {
    for (const std::size_t num : kSizes) {
        const std::vector<float> before = as_fp32(num);
        std::vector<float> numbers = before;
        const auto bytes = std::as_writable_bytes(std::span(numbers));
        ASSERT_TRUE(are_bf16(bytes)) << num;
        narrow(bytes);
        const auto* const halves = reinterpret_cast<const bf16*>(bytes.data());
        for (std::size_t i = 0; i < num; ++i) EXPECT_EQ(halves[i], bf16_number(i)) << i;
        widen(bytes);
        EXPECT_EQ(bits_of(numbers), bits_of(before)) << num;
    }
}

// Wherever the number is, and whichever of the lower bits it has.
TEST(ExactBf16, OneNumberOfMoreBitsIsFound) {
    for (const std::size_t num : kSizes) {
        for (const std::size_t at : {std::size_t{0}, num / 2, num - 1}) {
            if (at >= num) continue;
            for (int bit = 0; bit < 16; ++bit) {
                std::vector<float> numbers(num, 0.5F);
                const std::uint32_t bits =
                    std::bit_cast<std::uint32_t>(numbers[at]) | (std::uint32_t{1} << bit);
                numbers[at] = std::bit_cast<float>(bits);
                EXPECT_FALSE(are_bf16(std::as_bytes(std::span(numbers)))) << num << " at " << at;
            }
        }
    }
}

}  // namespace
}  // namespace pitstop::tp_worker
