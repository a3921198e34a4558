// Random bits by Philox4x32-10, from (key, counter), without state.
// Source: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", table 2
// and section 3.3. tests/kernels/sampling_test.cpp has the known answers of its authors' library.
#pragma once

#include <array>
#include <cstdint>

namespace pitstop::kernels {

inline constexpr std::uint32_t kPhiloxM0 = 0xd2511f53u;
inline constexpr std::uint32_t kPhiloxM1 = 0xcd9e8d57u;
inline constexpr std::uint32_t kPhiloxW0 = 0x9e3779b9u;
inline constexpr std::uint32_t kPhiloxW1 = 0xbb67ae85u;
inline constexpr int kPhiloxRounds = 10;

[[nodiscard]] constexpr std::array<std::uint32_t, 4> philox(
    std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key
) {
    for (int round = 0; round < kPhiloxRounds; ++round) {
        const std::uint64_t p0 = std::uint64_t{kPhiloxM0} * counter[0];
        const std::uint64_t p1 = std::uint64_t{kPhiloxM1} * counter[2];
        counter = {
            static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0],
            static_cast<std::uint32_t>(p1),
            static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1],
            static_cast<std::uint32_t>(p0),
        };
        key = {key[0] + kPhiloxW0, key[1] + kPhiloxW1};
    }
    return counter;
}

}  // namespace pitstop::kernels
