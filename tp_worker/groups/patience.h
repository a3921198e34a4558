// Says until when to wait, and what calls the wait off.
#pragma once

#include "base/time.h"

#include <atomic>

namespace pitstop::tp_worker {

// A wait without a poll looks this often whether it was called off.
inline constexpr auto kCallOffLook = std::chrono::milliseconds(50);

struct Patience {
    TimePoint deadline = TimePoint::max();
    const std::atomic<bool>& is_called_off;
};

}  // namespace pitstop::tp_worker
