// Defines the one clock. Pure cores take a TimePoint; only the thin loops read it.
#pragma once

#include <chrono>

namespace pitstop {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

// As messages, metrics and logs have it, with its fraction.
[[nodiscard]] inline double seconds(Duration duration) {
    return std::chrono::duration<double>(duration).count();
}

}  // namespace pitstop
