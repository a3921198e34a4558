// Writes values like Python: str(), repr(), printf's numbers, and HTML's escapes.
#pragma once

#include "base/result.h"
#include "jinja/budget.h"
#include "jinja/value.h"

#include <string>
#include <string_view>

namespace pitstop::jinja {

// Writes the shortest digits that read back as the same value, like repr(float): 1.0, 1e+16,
// 0.0001, nan.
[[nodiscard]] std::string repr_of(double value);
// Formats like printf, with which Python's formatting agrees: "%.2f".
[[nodiscard]] std::string formatted(double value, const std::string& format);

// Writes like str(), and so like `{{ value }}`.
bool write_str(const Value& value, TextBuilder& out);
bool write_repr(const Value& value, TextBuilder& out);
[[nodiscard]] Result<std::string> str_of(const Value& value, Budget& budget);

// Writes the text with HTML's special characters escaped.
void write_escaped(std::string_view text, TextBuilder& out);
[[nodiscard]] Result<std::string> escaped(std::string_view text, Budget& budget);

}  // namespace pitstop::jinja
