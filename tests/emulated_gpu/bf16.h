// bfloat16 as bits: the upper half of binary32.
#pragma once

#include <bit>
#include <cstdint>

namespace pitstop::emulator {

inline float widen(std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Rounds to nearest, ties to even. Source: IEEE 754.
inline std::uint16_t narrow(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
    return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace pitstop::emulator
