// Checks fields that many messages have, for their `invalid`: says what is wrong, or nothing.
#pragma once

#include "base/ids.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::messages {

// Checks the number that a caller gives its call.
[[nodiscard]] std::optional<std::string> invalid_call(CallId call);
[[nodiscard]] std::optional<std::string> invalid_call(CallId call, std::int64_t timeout_ms);

// Checks a version's label. It stands in log lines, metrics and the launcher's lines, so it is one
// line each time; an empty label is allowed and means none.
[[nodiscard]] std::optional<std::string> invalid_label(std::string_view label);
// Checks the same of another name that people read.
[[nodiscard]] std::optional<std::string> invalid_line(
    std::string_view field, std::string_view text
);

}  // namespace pitstop::messages
