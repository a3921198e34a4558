// Dtypes, by their names in messages, which are safetensors' names.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace pitstop::messages {

// The dtype of a resident weight if the message names none.
inline constexpr std::string_view kUsualDtype = "BF16";

[[nodiscard]] constexpr std::string_view dtype_or_usual(std::string_view dtype) {
    return dtype.empty() ? kUsualDtype : dtype;
}

// Returns the bytes of one element; nothing for a dtype that weights cannot have here.
[[nodiscard]] constexpr std::optional<std::int64_t> element_bytes_of(std::string_view dtype) {
    if (dtype == "BF16" || dtype == "F16") return 2;
    if (dtype == "F32") return 4;
    return std::nullopt;
}

}  // namespace pitstop::messages
