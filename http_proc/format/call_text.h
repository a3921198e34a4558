// Parts that the readers of tool calls share: white space, names and markers.
#pragma once

#include "http_proc/format/call_body.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace pitstop::http {

inline constexpr std::string_view kCallSpace = " \t\r\n";
inline constexpr std::size_t kCallSpaceBytesMax = 256;  // withheld where a call may follow
// for a name or a key, including the white space around it
inline constexpr std::size_t kCallNameBytesMax = 256;

inline bool is_call_space(char c) { return kCallSpace.find(c) != std::string_view::npos; }

inline bool is_all_call_space(std::string_view text) {
    return text.find_first_not_of(kCallSpace) == std::string_view::npos;
}

inline std::string_view without_call_space(std::string_view text) {
    const std::size_t begin = text.find_first_not_of(kCallSpace);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(kCallSpace) + 1 - begin);
}

// Returns whether the text may be a function's name.
inline bool is_call_name(std::string_view text) {
    constexpr std::string_view kCharacters =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/";
    return !text.empty() && text.find_first_not_of(kCharacters) == std::string_view::npos;
}

// Returns whether the text may be the start of a name and the marker after it. White space may
// surround the name.
inline bool may_be_call_name_before(std::string_view text, std::string_view marker) {
    std::size_t at = 0;
    while (at < text.size() && (is_call_space(text[at]) || is_call_name(text.substr(at, 1)))) ++at;
    marker.remove_prefix(std::min(marker.find_first_not_of(kCallSpace), marker.size()));
    return marker.starts_with(text.substr(at));
}

// Reads one marker; skips white space before it.
class MarkerReader {
  public:
    // Reads one byte. Returns `at_end` for the marker's last byte, and then starts over.
    [[nodiscard]] CallStep read(char c, std::string_view marker, CallStep at_end) {
        if (num_read_ == 0 && is_call_space(c)) return CallStep::kMore;
        if (marker[num_read_] != c) return CallStep::kBroken;
        if (++num_read_ < marker.size()) return CallStep::kMore;
        num_read_ = 0;
        return at_end;
    }
    [[nodiscard]] bool empty() const { return num_read_ == 0; }

  private:
    std::size_t num_read_ = 0;
};

// Reads the text between the calls of a section, up to the next call or the section's end.
class SectionReader {
  public:
    // Returns kCall at the end of `next`, and kBody at the end of `close`.
    [[nodiscard]] CallStep read(
        char c, std::string_view next, std::string_view close, const CallBody& body
    ) {
        if (marker_.empty() && is_call_space(c)) {
            const bool is_short = body.written().size() <= kCallSpaceBytesMax;
            return is_short ? CallStep::kMore : CallStep::kBroken;
        }
        marker_ += c;
        if (marker_ == next) {
            marker_.clear();
            return CallStep::kCall;
        }
        if (marker_ == close) return body.has_call() ? CallStep::kBody : CallStep::kBroken;
        const bool may_follow = next.starts_with(marker_) || close.starts_with(marker_);
        return may_follow ? CallStep::kMore : CallStep::kBroken;
    }

  private:
    std::string marker_{};
};

// Reads the text after the last call: perhaps a closing marker.
class OptionalEndReader {
  public:
    [[nodiscard]] CallStep read(char c, std::string_view close, const CallBody& body) {
        const bool is_space = num_read_ == 0 && is_call_space(c);
        if (is_space && body.written().size() <= kCallSpaceBytesMax) return CallStep::kMore;
        if (close[num_read_] != c) return CallStep::kBroken;
        return ++num_read_ == close.size() ? CallStep::kBody : CallStep::kMore;
    }

  private:
    std::size_t num_read_ = 0;
};

}  // namespace pitstop::http
