#include "scheduler_proc/turn.h"

#include <algorithm>

namespace pitstop::scheduler {

TimePoint deadline_of(TimePoint now, std::int64_t timeout_ms) {
    if (timeout_ms <= 0) return now + kCallTimeout;
    return now + duration_of(static_cast<double>(timeout_ms) / 1000);
}

std::optional<TimePoint> earlier(std::optional<TimePoint> a, std::optional<TimePoint> b) {
    if (!a || !b) return a ? a : b;
    return std::min(*a, *b);
}

}  // namespace pitstop::scheduler
