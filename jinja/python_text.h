// Texts as Python sees them: sequences of code points, with Python's definitions of white space,
// case and digits.
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
// Returns the byte where code point `index` begins, or the end if there are fewer.
[[nodiscard]] std::size_t byte_at(std::string_view text, std::size_t index);
[[nodiscard]] std::vector<std::string_view> code_points_of(std::string_view text);

[[nodiscard]] bool is_python_space(char32_t code_point);
// Changing the case of a text multiplies its length by at most this.
inline constexpr std::size_t kCasedGrowthMax = 2;
[[nodiscard]] std::string to_lower(std::string_view text);
[[nodiscard]] std::string to_upper(std::string_view text);
// Puts the first code point in title case, the others in lower case.
[[nodiscard]] std::string to_capitalized(std::string_view text);
// Puts each word's first letter in title case, like str.title(): "they're" counts as two words.
[[nodiscard]] std::string to_title(std::string_view text);
[[nodiscard]] std::string swap_case(std::string_view text);

enum class TextClass { kAlpha, kDigit, kAlnum, kSpace, kLower, kUpper };
// Like str.isalpha() and its relatives: true if the text is not empty and all characters qualify.
[[nodiscard]] bool is_all(std::string_view text, TextClass text_class);

enum class StripSide { kBoth, kLeft, kRight };
[[nodiscard]] std::string_view strip(std::string_view text, StripSide side);
[[nodiscard]] Result<std::string_view> strip(
    std::string_view text, std::string_view characters, StripSide side, Budget& budget
);

// Returns the position of the first or last `part` in the text; npos: nowhere. Linear in the text
// for all inputs, unlike std::string's.
[[nodiscard]] std::size_t find_text(std::string_view text, std::string_view part);
[[nodiscard]] Result<std::size_t> find_text(
    std::string_view text, std::string_view part, Budget& budget
);
[[nodiscard]] Result<std::size_t> find_last_text(
    std::string_view text, std::string_view part, Budget& budget
);

}  // namespace pitstop::jinja
