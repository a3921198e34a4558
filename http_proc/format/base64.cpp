#include "http_proc/format/base64.h"

#include <algorithm>

namespace pitstop::http {
namespace {

// Returns 0 to 63, or -1 if the character is not in the alphabet.
int value_of(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+') return 62;
    return c == '/' ? 63 : -1;
}

}  // namespace

Result<std::vector<std::uint8_t>> base64_decode(std::string_view text) {
    if (text.size() % 4 != 0) {
        return make_error(
            ErrorCode::kMalformed, "base64 of {} characters, not a multiple of 4", text.size()
        );
    }
    std::size_t size = text.size();
    while (size > 0 && text.size() - size < 2 && text[size - 1] == '=') --size;
    std::vector<std::uint8_t> bytes;
    bytes.reserve(size / 4 * 3 + 2);
    std::uint32_t bits = 0;
    int num_bits = 0;
    for (std::size_t i = 0; i < size; ++i) {
        const int value = value_of(text[i]);
        if (value < 0)
            return make_error(
                ErrorCode::kMalformed, "base64: character {} is not in its alphabet", i
            );
        bits = bits << 6 | static_cast<std::uint32_t>(value);
        num_bits += 6;
        if (num_bits < 8) continue;
        num_bits -= 8;
        bytes.push_back(static_cast<std::uint8_t>(bits >> num_bits));
    }
    return bytes;
}

void append_base64(std::string& to, std::span<const std::uint8_t> bytes) {
    constexpr std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        const std::size_t num = std::min<std::size_t>(3, bytes.size() - i);
        std::uint32_t bits = 0;
        for (std::size_t k = 0; k < 3; ++k)
            bits = bits << 8 | (k < num ? std::uint32_t{bytes[i + k]} : 0u);
        for (std::size_t k = 0; k < 4; ++k)
            to += k <= num ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
    }
}

}  // namespace pitstop::http
