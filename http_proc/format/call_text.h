// Shared by the grammars of tool calls: white space and names.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace pitstop::http {

inline constexpr std::string_view kCallSpace = " \t\r\n";
inline constexpr std::size_t kCallSpaceBytesMax = 256;  // held back where a call may follow
// Of a name or a key, with white space around it.
inline constexpr std::size_t kCallNameBytesMax = 256;

inline bool is_call_space(char c) { return kCallSpace.find(c) != std::string_view::npos; }

inline std::string_view without_call_space(std::string_view text) {
    const std::size_t begin = text.find_first_not_of(kCallSpace);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(kCallSpace) + 1 - begin);
}

// Whether the text may be a function's name.
inline bool is_call_name(std::string_view text) {
    constexpr std::string_view kCharacters =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/";
    return !text.empty() && text.find_first_not_of(kCharacters) == std::string_view::npos;
}

// Whether the text may continue as a name, with white space around it, and then the marker.
inline bool may_be_call_name_before(std::string_view text, std::string_view marker) {
    std::size_t at = 0;
    while (at < text.size() && (is_call_space(text[at]) || is_call_name(text.substr(at, 1)))) ++at;
    marker.remove_prefix(std::min(marker.find_first_not_of(kCallSpace), marker.size()));
    return marker.starts_with(text.substr(at));
}

}  // namespace pitstop::http
