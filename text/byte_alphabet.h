// GPT-2's alphabet: each byte has a visible character, so that strings of a vocabulary can
// represent any bytes. A printable Latin-1 character represents its own byte. The other bytes have
// U+0100 and the characters after it.
//
// Source: github.com/openai/gpt-2, src/encoder.py, bytes_to_unicode.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::text {

inline constexpr std::array<char16_t, 256> kByteCharacters = [] {
    std::array<char16_t, 256> characters{};
    char16_t next = 256;
    for (unsigned byte = 0; byte < 256; ++byte) {
        const bool is_printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
        characters[byte] = is_printable ? static_cast<char16_t>(byte) : next++;
    }
    return characters;
}();

// Returns the byte that a character represents. All such characters are below U+0144.
[[nodiscard]] constexpr std::optional<std::uint8_t> byte_of_character(char32_t character) {
    constexpr auto kBytes = [] {
        std::array<std::int16_t, 0x144> bytes{};
        bytes.fill(-1);
        for (unsigned byte = 0; byte < 256; ++byte) {
            bytes[kByteCharacters[byte]] = static_cast<std::int16_t>(byte);
        }
        return bytes;
    }();
    if (character >= kBytes.size() || kBytes[character] < 0) return std::nullopt;
    return static_cast<std::uint8_t>(kBytes[character]);
}

// Appends the characters that represent the bytes of `text`.
inline void append_byte_characters(std::string_view text, std::string& out) {
    for (const char c : text) {
        const char16_t character = kByteCharacters[static_cast<unsigned char>(c)];
        if (character < 0x80) {
            out.push_back(static_cast<char>(character));
        } else {
            out.push_back(static_cast<char>(0xc0 | (character >> 6)));
            out.push_back(static_cast<char>(0x80 | (character & 0x3f)));
        }
    }
}

}  // namespace pitstop::text
