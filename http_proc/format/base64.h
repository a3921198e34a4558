// Base64 by RFC 4648 section 4: the standard alphabet, padded.
#pragma once

#include "base/result.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

// Errors: kMalformed, naming the character's position.
[[nodiscard]] Result<std::vector<std::uint8_t>> base64_decode(std::string_view text);
void append_base64(std::string& to, std::span<const std::uint8_t> bytes);

}  // namespace pitstop::http
