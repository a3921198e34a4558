#include "base/bf16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace pitstop {
namespace {

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// Returns the value of a bfloat16 magnitude by the format's definition, in double. Infinity counts
// as the next power of two: rounding to nearest puts the border of overflow half-way to it.
double magnitude_of(std::uint32_t bits) {
    const int exponent = static_cast<int>((bits >> 7) & 0xff);
    const double mantissa = static_cast<double>(bits & 0x7f) / 128.0;
    return exponent == 0 ? std::ldexp(mantissa, -126) : std::ldexp(1.0 + mantissa, exponent - 127);
}

TEST(Bf16, EveryValueSurvivesTheWayThroughFloat) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        const bf16 x{static_cast<std::uint16_t>(bits)};
        const float wide = to_float(x);
        const bool is_nan = (bits & 0x7fff) > 0x7f80;
        ASSERT_EQ(std::isnan(wide), is_nan) << bits;
        if (is_nan) {
            ASSERT_EQ(to_bf16(wide).bits, bits | 0x40) << "a quiet NaN with the payload kept";
        } else {
            ASSERT_EQ(to_bf16(wide), x) << bits;
        }
    }
}

// Rounds every finite bfloat16 and numbers between it and its neighbour: the ends, the middle and
// the numbers next to them, judged by distance in double.
TEST(Bf16, RoundsToNearestWithTiesToEven) {
    for (std::uint32_t upper = 0; upper < 0x7f80; ++upper) {
        const double low = magnitude_of(upper);
        const double high = magnitude_of(upper + 1);
        for (const std::uint32_t lower :
             {0x0000u, 0x0001u, 0x7ffeu, 0x7fffu, 0x8000u, 0x8001u, 0xfffeu, 0xffffu}) {
            const float x = float_of((upper << 16) | lower);
            const double to_low = static_cast<double>(x) - low;
            const double to_high = high - static_cast<double>(x);
            const bool goes_up = to_high < to_low || (to_high == to_low && upper % 2 == 1);
            const std::uint32_t expected = upper + (goes_up ? 1 : 0);
            ASSERT_EQ(to_bf16(x).bits, expected) << std::hexfloat << x;
            ASSERT_EQ(to_bf16(-x).bits, expected | 0x8000) << std::hexfloat << -x;
        }
    }
}

TEST(Bf16, KeepsInfinitiesZeroSignsAndDenormals) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    EXPECT_EQ(to_bf16(kInf).bits, 0x7f80);
    EXPECT_EQ(to_bf16(-kInf).bits, 0xff80);
    EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
    EXPECT_EQ(to_bf16(-0.f).bits, 0x8000);
    EXPECT_EQ(to_bf16(float_of(0x00010000)).bits, 0x0001);
    // A NaN whose payload is all in the lower half must not become an infinity.
    EXPECT_TRUE(std::isnan(to_float(to_bf16(float_of(0x7f800001)))));
}

TEST(F16, EveryValueIsWhatTheFormatSays) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        const int exponent = static_cast<int>((bits >> 10) & 0x1f);
        const double mantissa = static_cast<double>(bits & 0x3ff) / 1024.0;
        const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
        const float actual = to_float(f16{static_cast<std::uint16_t>(bits)});
        if (exponent == 31) {
            ASSERT_EQ(std::isnan(actual), mantissa != 0) << bits;
            ASSERT_EQ(std::isinf(actual), mantissa == 0) << bits;
        } else {
            const double expected =
                sign * (exponent == 0 ? std::ldexp(mantissa, -14)
                                      : std::ldexp(1 + mantissa, exponent - 15));
            ASSERT_EQ(static_cast<double>(actual), expected) << bits;
        }
        ASSERT_EQ(std::signbit(actual), (bits & 0x8000) != 0) << bits;
    }
}

}  // namespace
}  // namespace pitstop
