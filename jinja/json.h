// Turns JSON into values and back, as Python's json module does.
#pragma once

#include "base/result.h"
#include "jinja/budget.h"
#include "jinja/value.h"

#include <optional>
#include <string>
#include <string_view>

namespace pitstop::jinja {

inline constexpr int kJsonDepthMax = 100;
// A value takes about 100 bytes however few it is written with: "[],[],[]".
inline constexpr std::size_t kJsonValuesMax = 500'000;

// Integers beyond 64 bits are kept as they are written. Errors: kInvalidArgument (not JSON, and at
// which byte), kTooLarge (over kJsonDepthMax or kJsonValuesMax).
[[nodiscard]] Result<Value> parse_json(std::string_view json);

struct JsonFormat {
    bool ascii_only = false;  // ensure_ascii
    bool sort_keys = false;
    std::optional<std::string> indent{};  // per level; absent: on one line
    std::string item_separator = ", ";
    std::string key_separator = ": ";
};
// Writes what json.dumps() does. Errors: kInvalidArgument: a value or key that has no JSON
// (undefined, an iterator).
[[nodiscard]] Result<std::string> to_json(
    const Value& value, const JsonFormat& format, Budget& budget
);

}  // namespace pitstop::jinja
