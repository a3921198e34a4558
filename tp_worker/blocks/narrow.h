// Explicit conversions to the 32-bit integers of the ops.
#pragma once

#include "base/check.h"

#include <cstdint>
#include <limits>

namespace pitstop::tp_worker {

// REQUIRES: `value` is a count or an index that fits.
[[nodiscard]] inline std::int32_t narrow(std::int64_t value) {
    CHECK(value >= 0 && value <= std::numeric_limits<std::int32_t>::max());
    return static_cast<std::int32_t>(value);
}

}  // namespace pitstop::tp_worker
