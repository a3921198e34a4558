// Checks of fields that many messages have, for their `invalid`: what is wrong, or nothing.
#pragma once

#include "base/ids.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::messages {

// The number that a caller gives its call.
[[nodiscard]] std::optional<std::string> invalid_call(CallId call);
[[nodiscard]] std::optional<std::string> invalid_call(CallId call, std::int64_t timeout_ms);

// A version's label: it stands in log lines, metrics and the launcher's lines, each one line.
// Empty is a label too (none).
[[nodiscard]] std::optional<std::string> invalid_label(std::string_view label);

}  // namespace pitstop::messages
