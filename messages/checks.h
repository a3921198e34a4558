// Checks of fields that many messages have, for their `invalid`. Each function returns what is
// wrong, or nothing.
#pragma once

#include "base/ids.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::messages {

// Checks the number that a caller gave its call.
[[nodiscard]] std::optional<std::string> invalid_call(CallId call);
[[nodiscard]] std::optional<std::string> invalid_call(CallId call, std::int64_t timeout_ms);

// Checks a version's label, which must be a single line, because it appears in logs, in metrics and
// in lines to the launcher. An empty label is allowed and means none.
[[nodiscard]] std::optional<std::string> invalid_label(std::string_view label);
// Whether the text has a byte below 0x20, or 0x7f.
[[nodiscard]] bool has_control_character(std::string_view text);
// Checks another name that people read; the rules for labels apply.
[[nodiscard]] std::optional<std::string> invalid_line(
    std::string_view field, std::string_view text
);

}  // namespace pitstop::messages
