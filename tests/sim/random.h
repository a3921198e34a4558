// Seeded randomness of the simulator: the same schedule from the same seed on every machine.
#pragma once

#include "base/digest.h"

#include <cstdint>

namespace pitstop::sim {

class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(mix64(seed + 1)) {}

    std::uint64_t next() {
        state_ += kDigestStep;
        return mix64(state_);
    }
    // In [low, high].
    std::int64_t between(std::int64_t low, std::int64_t high) {
        return low + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(high - low + 1));
    }
    // True once in `n`.
    bool once_in(std::int64_t n) { return between(1, n) == 1; }

  private:
    std::uint64_t state_;
};

// A hash of several numbers.
template <class... Numbers>
[[nodiscard]] constexpr std::uint64_t hash_of(Numbers... numbers) {
    std::uint64_t h = 0;
    ((h = mix64(h + kDigestStep + static_cast<std::uint64_t>(numbers))), ...);
    return h;
}

}  // namespace pitstop::sim
