#include "text/utf8.h"

#include "base/check.h"

#include <cstdint>
#include <cstring>

namespace pitstop::text {
namespace {

enum class Part { kWhole, kPrefix, kBad };

struct Scanned {
    Part part = Part::kBad;
    // The length of the code point, of the prefix, or of the part that one U+FFFD replaces.
    std::size_t len = 0;
};

// Returns what begins at the start of `text`. REQUIRES: !text.empty().
Scanned scan(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned lead = byte(0);
    if (lead < 0x80) return {Part::kWhole, 1};
    if (lead < 0xc2 || lead > 0xf4) return {Part::kBad, 1};
    const std::size_t len = utf8_len(text[0]);
    // The second byte has a narrower range if a wider one would permit an overlong form, a
    // surrogate or a value above 10FFFF.
    const unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    for (std::size_t i = 1; i < len; ++i) {
        if (i == text.size()) return {Part::kPrefix, i};
        const bool good =
            i == 1 ? byte(i) >= low && byte(i) <= high : is_continuation_byte(text[i]);
        if (!good) return {Part::kBad, i};
    }
    return {Part::kWhole, len};
}

// Returns the end of the ASCII text that begins at `pos`. Reads eight bytes at a time.
std::size_t skip_ascii(std::string_view text, std::size_t pos) {
    while (pos + 8 <= text.size()) {
        std::uint64_t word = 0;
        std::memcpy(&word, text.data() + pos, 8);
        if ((word & 0x8080808080808080u) != 0) break;
        pos += 8;
    }
    while (pos < text.size() && static_cast<unsigned char>(text[pos]) < 0x80) ++pos;
    return pos;
}

}  // namespace

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
    for (std::size_t pos = 0;;) {
        pos = skip_ascii(text, pos);
        if (pos == text.size()) return std::nullopt;
        const Scanned scanned = scan(text.substr(pos));
        if (scanned.part != Part::kWhole) return pos;
        pos += scanned.len;
    }
}

void append_utf8(char32_t code_point, std::string& out) {
    CHECK(code_point <= kCodePointMax && (code_point < 0xd800 || code_point > 0xdfff));
    const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
    if (code_point < 0x80) {
        put(code_point);
    } else if (code_point < 0x800) {
        put(0xc0 | (code_point >> 6));
        put(0x80 | (code_point & 0x3f));
    } else if (code_point < 0x10000) {
        put(0xe0 | (code_point >> 12));
        put(0x80 | ((code_point >> 6) & 0x3f));
        put(0x80 | (code_point & 0x3f));
    } else {
        put(0xf0 | (code_point >> 18));
        put(0x80 | ((code_point >> 12) & 0x3f));
        put(0x80 | ((code_point >> 6) & 0x3f));
        put(0x80 | (code_point & 0x3f));
    }
}

void LossyUtf8::push(std::string_view bytes, std::string& out) {
    std::string joined;  // used only if bytes were withheld
    if (!held_.empty()) {
        joined = held_;
        joined += bytes;
        bytes = joined;
        held_.clear();
    }
    for (std::size_t pos = 0; pos < bytes.size();) {
        const std::size_t ascii_end = skip_ascii(bytes, pos);
        out += bytes.substr(pos, ascii_end - pos);
        pos = ascii_end;
        if (pos == bytes.size()) return;
        const Scanned scanned = scan(bytes.substr(pos));
        if (scanned.part == Part::kPrefix) {
            held_ = bytes.substr(pos);
            return;
        }
        out +=
            scanned.part == Part::kWhole ? bytes.substr(pos, scanned.len) : kReplacementCharacter;
        pos += scanned.len;
    }
}

void LossyUtf8::finish(std::string& out) {
    if (!held_.empty()) out += kReplacementCharacter;
    held_.clear();
}

}  // namespace pitstop::text
