// Random numbers that a seed determines on every machine, unlike std's distributions.
#pragma once

#include "base/digest.h"

#include <cmath>
#include <cstdint>
#include <numbers>

namespace pitstop::bench {

class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(mix64(seed)) {}

    std::uint64_t bits() { return mix64(state_ += 0x9e3779b97f4a7c15u); }  // SplitMix64

    // Draws from [0, 1).
    double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

    // Draws from [low, high]. REQUIRES: low <= high, high - low < 2^32.
    std::int64_t integer(std::int64_t low, std::int64_t high) {
        const auto range = static_cast<std::uint64_t>(high - low) + 1;
        return low + static_cast<std::int64_t>(((bits() >> 32) * range) >> 32);
    }

    // Draws from the exponential distribution with mean 1.
    double exponential() { return -std::log1p(-uniform()); }

    double normal() {  // Box and Muller 1958
        const double radius = std::sqrt(2 * exponential());
        return radius * std::cos(2 * std::numbers::pi * uniform());
    }

  private:
    std::uint64_t state_;
};

}  // namespace pitstop::bench
