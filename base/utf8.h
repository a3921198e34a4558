// Checks that bytes are UTF-8. Source: Unicode 15, table 3-7 (well-formed UTF-8 byte sequences).
#pragma once

#include <cstddef>
#include <string_view>

namespace pitstop {

[[nodiscard]] bool is_utf8(std::string_view text);

// Returns the start of a UTF-8 text, at most so many bytes, without half a character. It serves to
// quote what somebody sent.
[[nodiscard]] std::string_view utf8_prefix(std::string_view text, std::size_t bytes_max);

}  // namespace pitstop
