// Validates UTF-8, iterates over its code points, and replaces invalid parts.
//
// Source: Unicode 16, section 3.9, table 3-7 and "U+FFFD Substitution of Maximal Subparts". Rust's
// String::from_utf8_lossy does the same.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::text {

inline constexpr char32_t kCodePointMax = 0x10ffff;
inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

// Returns the offset of the first byte that belongs to no valid code point, or nothing.
[[nodiscard]] std::optional<std::size_t> find_invalid_utf8(std::string_view text);

// Returns the code point at `pos`, and moves `pos` to the next one. REQUIRES: `text` is valid
// UTF-8, pos < text.size(), and `pos` is where a code point begins.
[[nodiscard]] inline char32_t next_code_point(std::string_view text, std::size_t& pos) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const char32_t lead = byte(pos);
    if (lead < 0x80) {
        pos += 1;
        return lead;
    }
    if (lead < 0xe0) {
        const char32_t code_point = ((lead & 0x1fu) << 6) | (byte(pos + 1) & 0x3fu);
        pos += 2;
        return code_point;
    }
    if (lead < 0xf0) {
        const char32_t code_point =
            ((lead & 0x0fu) << 12) | ((byte(pos + 1) & 0x3fu) << 6) | (byte(pos + 2) & 0x3fu);
        pos += 3;
        return code_point;
    }
    const char32_t code_point = ((lead & 0x07u) << 18) | ((byte(pos + 1) & 0x3fu) << 12) |
                                ((byte(pos + 2) & 0x3fu) << 6) | (byte(pos + 3) & 0x3fu);
    pos += 4;
    return code_point;
}

// Returns the length of the code point that has this first byte. REQUIRES: a code point can begin
// with the byte.
[[nodiscard]] constexpr std::size_t utf8_len(char lead) {
    const auto byte = static_cast<unsigned char>(lead);
    return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

[[nodiscard]] constexpr bool is_continuation_byte(char c) {
    return (static_cast<unsigned char>(c) & 0xc0u) == 0x80u;
}

// REQUIRES: the code point is not a surrogate.
void append_utf8(char32_t code_point, std::string& out);

// Turns bytes into valid UTF-8: every maximal invalid part becomes one U+FFFD. Bytes that may still
// become a code point are withheld, so the output does not depend on where the input is cut.
//
// Bounded: at most 3 withheld bytes.
class LossyUtf8 {
  public:
    void push(std::string_view bytes, std::string& out);
    // Ends the input: withheld bytes are invalid. Resets the object.
    void finish(std::string& out);

  private:
    std::string held_{};  // a proper prefix of some code point
};

}  // namespace pitstop::text
