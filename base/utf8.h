// Checks that bytes are UTF-8. Source: Unicode 15, table 3-7 (well-formed UTF-8 byte sequences).
#pragma once

#include <cstddef>
#include <string_view>

namespace pitstop {

[[nodiscard]] bool is_utf8(std::string_view text);

// Returns the longest prefix of a UTF-8 text with at most this many bytes and no partial character.
// Used to quote a peer's text.
[[nodiscard]] std::string_view utf8_prefix(std::string_view text, std::size_t bytes_max);

}  // namespace pitstop
