// Shared by the methods and the filters of texts.
#pragma once

#include "base/result.h"
#include "jinja/budget.h"
#include "jinja/value.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::jinja {

// Like str.replace: `count` replacements, all if negative.
[[nodiscard]] Result<std::string> replace_all(
    std::string_view text,
    std::string_view from,
    std::string_view to,
    std::int64_t count,
    Budget& budget
);

enum class Justify { kLeft, kRight, kCenter };
[[nodiscard]] Result<std::string> justify(
    std::string_view text, std::int64_t width, std::string_view fill, Justify how, Budget& budget
);

// Like str.splitlines.
[[nodiscard]] Result<std::vector<std::string_view>> split_lines(
    std::string_view text, bool keeps_ends, Budget& budget
);

// Like int(text, base) and float(text); nothing where Python raises.
[[nodiscard]] std::optional<Value> parse_whole(std::string_view text, std::int64_t base);
[[nodiscard]] std::optional<double> parse_real(std::string_view text);

}  // namespace pitstop::jinja
