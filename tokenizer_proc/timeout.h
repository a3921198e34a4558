// Converts the timeouts that callers give.
#pragma once

#include "base/time.h"

#include <algorithm>
#include <cstdint>

namespace pitstop::tokenizer {

// Returns the caller's timeout, but at most a day, because larger ones overflow the clock. For 0,
// returns `otherwise`.
[[nodiscard]] inline Duration timeout_or(Duration otherwise, std::int64_t asked_ms) {
    constexpr std::int64_t kDayMs = std::int64_t{24} * 3600 * 1000;
    return asked_ms > 0 ? Duration(std::chrono::milliseconds(std::min(asked_ms, kDayMs)))
                        : otherwise;
}

}  // namespace pitstop::tokenizer
