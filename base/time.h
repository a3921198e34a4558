// The one clock of the project. Pure cores take a TimePoint; only the thin loops read the clock.
#pragma once

#include <algorithm>
#include <chrono>

namespace pitstop {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

// Returns seconds with their fraction, the unit of messages, metrics and logs.
[[nodiscard]] inline double seconds(Duration duration) {
    return std::chrono::duration<double>(duration).count();
}

// Inverts seconds(), for values of messages and flags. The result is ten years at most, so that
// `now + duration_of(s)` cannot overflow.
[[nodiscard]] inline Duration duration_of(double seconds) {
    constexpr std::chrono::duration<double> kMost = std::chrono::hours(24 * 365 * 10);
    return std::chrono::duration_cast<Duration>(
        std::min(std::chrono::duration<double>(seconds), kMost)
    );
}

}  // namespace pitstop
