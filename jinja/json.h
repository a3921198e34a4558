// Converts JSON to values and back, like Python's json module.
#pragma once

#include "base/result.h"
#include "jinja/budget.h"
#include "jinja/value.h"

#include <optional>
#include <string>
#include <string_view>

namespace pitstop::jinja {

inline constexpr int kJsonDepthMax = 100;
// A value needs about 100 bytes even if its text is short: "[],[],[]".
inline constexpr std::size_t kJsonValuesMax = 500'000;

// Keeps the text of integers beyond 64 bits. Errors: kInvalidArgument (not JSON, and at which
// byte), kTooLarge (over kJsonDepthMax or kJsonValuesMax).
[[nodiscard]] Result<Value> parse_json(std::string_view json);

struct JsonFormat {
    bool ascii_only = false;  // ensure_ascii
    bool sort_keys = false;
    std::optional<std::string> indent{};  // of one level; absent: all on one line
    std::string item_separator = ", ";
    std::string key_separator = ": ";
};
// Writes like json.dumps(). Errors: kInvalidArgument if a value or key has no JSON (undefined,
// an iterator).
[[nodiscard]] Result<std::string> to_json(
    const Value& value, const JsonFormat& format, Budget& budget
);

}  // namespace pitstop::jinja
