// Defines the one clock. Pure cores take a TimePoint; only the thin loops read it.
#pragma once

#include <algorithm>
#include <chrono>

namespace pitstop {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

// As messages, metrics and logs have it, with its fraction.
[[nodiscard]] inline double seconds(Duration duration) {
    return std::chrono::duration<double>(duration).count();
}

// The inverse, of what a message or a flag says: ten years at most, so that `now + duration_of(s)`
// cannot overflow.
[[nodiscard]] inline Duration duration_of(double seconds) {
    constexpr std::chrono::duration<double> kMost = std::chrono::hours(24 * 365 * 10);
    return std::chrono::duration_cast<Duration>(
        std::min(std::chrono::duration<double>(seconds), kMost)
    );
}

}  // namespace pitstop
