// Writes values as Python does: str(), repr(), printf's numbers, and HTML's escapes.
#pragma once

#include "base/result.h"
#include "jinja/budget.h"
#include "jinja/value.h"

#include <string>
#include <string_view>

namespace pitstop::jinja {

// Writes the shortest digits that read back the same, as repr(float): 1.0, 1e+16, 0.0001, nan.
[[nodiscard]] std::string repr_of(double value);
// Formats as printf does, which Python's formatting agrees with: "%.2f".
[[nodiscard]] std::string formatted(double value, const std::string& format);

// Writes as str() does, which is what `{{ value }}` writes.
bool write_str(const Value& value, TextBuilder& out);
bool write_repr(const Value& value, TextBuilder& out);
[[nodiscard]] Result<std::string> str_of(const Value& value, Budget& budget);

// Writes with HTML's characters escaped.
void write_escaped(std::string_view text, TextBuilder& out);
[[nodiscard]] Result<std::string> escaped(std::string_view text, Budget& budget);

}  // namespace pitstop::jinja
