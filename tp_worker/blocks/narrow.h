// Narrows, in sight, what the ops number with 32 bits.
#pragma once

#include "base/check.h"

#include <cstdint>
#include <limits>

namespace pitstop::tp_worker {

// REQUIRES: it is a count or a place, which fits.
[[nodiscard]] inline std::int32_t narrow(std::int64_t value) {
    CHECK(value >= 0 && value <= std::numeric_limits<std::int32_t>::max());
    return static_cast<std::int32_t>(value);
}

}  // namespace pitstop::tp_worker
