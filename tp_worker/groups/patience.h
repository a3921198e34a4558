// Says until when to wait, and what calls the wait off.
#pragma once

#include "base/time.h"

#include <atomic>

namespace pitstop::tp_worker {

struct Patience {
    TimePoint deadline = TimePoint::max();
    const std::atomic<bool>& is_called_off;
};

}  // namespace pitstop::tp_worker
