// The end of a wait: its deadline, and its cancellation.
#pragma once

#include "base/time.h"

#include <atomic>

namespace pitstop::tp_worker {

// A wait without a poll checks this often whether it was cancelled.
inline constexpr auto kCallOffLook = std::chrono::milliseconds(50);

struct Patience {
    TimePoint deadline = TimePoint::max();
    const std::atomic<bool>& is_called_off;
};

}  // namespace pitstop::tp_worker
