// Treats texts as Python does: as sequences of code points, with Python's idea of white space, case
// and digits.
//
// Positions and lengths are in code points; texts are UTF-8.
#pragma once

#include "base/result.h"
#include "jinja/budget.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::jinja {

[[nodiscard]] std::size_t num_code_points(std::string_view text);
// Returns the byte at which code point `index` begins; the end where there are fewer.
[[nodiscard]] std::size_t byte_at(std::string_view text, std::size_t index);
[[nodiscard]] std::vector<std::string_view> code_points_of(std::string_view text);

[[nodiscard]] bool is_python_space(char32_t code_point);
// A text whose letters change their case is at most so many times as long.
inline constexpr std::size_t kCasedGrowthMax = 2;
[[nodiscard]] std::string to_lower(std::string_view text);
[[nodiscard]] std::string to_upper(std::string_view text);
// Puts the first code point in title case, the others in lower case.
[[nodiscard]] std::string to_capitalized(std::string_view text);
// Puts each word's first letter in title case, as str.title(), to which "they're" is two words.
[[nodiscard]] std::string to_title(std::string_view text);
[[nodiscard]] std::string swap_case(std::string_view text);

enum class TextClass { kAlpha, kDigit, kAlnum, kSpace, kLower, kUpper };
// Tells what str.isalpha() and its like tell: true of at least one character, and of all.
[[nodiscard]] bool is_all(std::string_view text, TextClass text_class);

enum class StripSide { kBoth, kLeft, kRight };
[[nodiscard]] std::string_view strip(std::string_view text, StripSide side);
[[nodiscard]] Result<std::string_view> strip(
    std::string_view text, std::string_view characters, StripSide side, Budget& budget
);

// Finds where `part` is in the text, first or last; npos: nowhere. It is linear in the text,
// whatever is in the two: std::string's own is not.
[[nodiscard]] std::size_t find_text(std::string_view text, std::string_view part);
[[nodiscard]] Result<std::size_t> find_text(
    std::string_view text, std::string_view part, Budget& budget
);
[[nodiscard]] Result<std::size_t> find_last_text(
    std::string_view text, std::string_view part, Budget& budget
);

}  // namespace pitstop::jinja
