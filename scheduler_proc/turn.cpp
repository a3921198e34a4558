#include "scheduler_proc/turn.h"

#include <algorithm>

namespace pitstop::scheduler {
namespace {

constexpr std::chrono::hours kForEver{24 * 365 * 10};

}  // namespace

Duration from_seconds(double seconds) {
    const double most = std::chrono::duration<double>(kForEver).count();
    return std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(std::min(seconds, most))
    );
}

TimePoint deadline_of(TimePoint now, std::int64_t timeout_ms) {
    if (timeout_ms <= 0) return now + kCallTimeout;
    return now + from_seconds(static_cast<double>(timeout_ms) / 1000);
}

std::optional<TimePoint> earlier(std::optional<TimePoint> a, std::optional<TimePoint> b) {
    if (!a || !b) return a ? a : b;
    return std::min(*a, *b);
}

}  // namespace pitstop::scheduler
