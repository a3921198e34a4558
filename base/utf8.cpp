#include "base/utf8.h"

namespace pitstop {

bool is_utf8(std::string_view text) {
    const auto* p = reinterpret_cast<const unsigned char*>(text.data());
    const auto* const end = p + text.size();
    const auto is_tail = [](unsigned char c) { return (c & 0xc0) == 0x80; };
    while (p != end) {
        const unsigned char c = *p;
        if (c < 0x80) {
            ++p;
        } else if (c >= 0xc2 && c <= 0xdf && end - p >= 2 && is_tail(p[1])) {
            p += 2;
        } else if ((c & 0xf0) == 0xe0 && end - p >= 3 && is_tail(p[1]) && is_tail(p[2]) && !(c == 0xe0 && p[1] < 0xa0) && !(c == 0xed && p[1] > 0x9f)) {
            p += 3;
        } else if (c >= 0xf0 && c <= 0xf4 && end - p >= 4 && is_tail(p[1]) && is_tail(p[2]) && is_tail(p[3]) && !(c == 0xf0 && p[1] < 0x90) && !(c == 0xf4 && p[1] > 0x8f)) {
            p += 4;
        } else {
            return false;
        }
    }
    return true;
}

std::string_view utf8_prefix(std::string_view text, std::size_t bytes_max) {
    if (text.size() <= bytes_max) return text;
    std::size_t end = bytes_max;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    return text.substr(0, end);
}

}  // namespace pitstop
