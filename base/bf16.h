// Defines bfloat16, the upper half of a float32, and f16, which only checkpoints use.
#pragma once

#include <bit>
#include <cstdint>

namespace pitstop {

struct bf16 {  // lower case: the usual name of the type
    std::uint16_t bits = 0;
    friend bool operator==(bf16, bf16) = default;
};
static_assert(sizeof(bf16) == 2);

[[nodiscard]] constexpr float to_float(bf16 x) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

// Rounds to nearest, ties to even, as VCVTNEPS2BF16 and CUDA's __float2bfloat16_rn do; a NaN stays
// a (quiet) NaN. Unlike the instruction, denormals are kept.
[[nodiscard]] constexpr bf16 to_bf16(float x) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x40u)};
    return {static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

struct f16 {
    std::uint16_t bits = 0;
    friend bool operator==(f16, f16) = default;
};
static_assert(sizeof(f16) == 2);

// The result is exact: every float16 is a float32.
[[nodiscard]] constexpr float to_float(f16 x) {
    const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
    const std::uint32_t exponent = (x.bits >> 10) & 0x1fu;
    const std::uint32_t mantissa = x.bits & 0x3ffu;
    if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0)
        return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // denormal or zero
    return sign != 0 ? -magnitude : magnitude;
}

}  // namespace pitstop
