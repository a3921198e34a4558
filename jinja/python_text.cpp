#include "jinja/python_text.h"

#include "text/unicode.h"
#include "text/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

namespace pitstop::jinja {
namespace {

utf8proc_category_t category_of(char32_t code_point) {
    return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

bool is_lower_case(char32_t c) {
    return c < 0x80 ? (c >= 'a' && c <= 'z')
                    : utf8proc_islower(static_cast<utf8proc_int32_t>(c)) != 0;
}
bool is_upper_case(char32_t c) {
    return c < 0x80 ? (c >= 'A' && c <= 'Z')
                    : utf8proc_isupper(static_cast<utf8proc_int32_t>(c)) != 0;
}
bool is_title_case(char32_t c) { return c >= 0x80 && category_of(c) == UTF8PROC_CATEGORY_LT; }
bool is_cased(char32_t c) { return is_lower_case(c) || is_upper_case(c) || is_title_case(c); }

// Letters whose upper case is several letters, as far as they occur in running text. The rest of
// SpecialCasing.txt is polytonic Greek and Armenian ligatures, which stay unchanged here.
struct Expansion {
    char32_t letter;
    std::string_view upper;
    std::string_view title;
};
constexpr std::array kExpansions{
    Expansion{0x00df, "SS", "Ss"},
    Expansion{0x0149, "\xca\xbcN", "\xca\xbcN"},
    Expansion{0xfb00, "FF", "Ff"},
    Expansion{0xfb01, "FI", "Fi"},
    Expansion{0xfb02, "FL", "Fl"},
    Expansion{0xfb03, "FFI", "Ffi"},
    Expansion{0xfb04, "FFL", "Ffl"},
    Expansion{0xfb05, "ST", "St"},
    Expansion{0xfb06, "ST", "St"},
};

enum class Case { kUpper, kTitle };

void append_cased(char32_t c, Case to, std::string& out) {
    for (const Expansion& expansion : kExpansions) {
        if (expansion.letter != c) continue;
        out += to == Case::kUpper ? expansion.upper : expansion.title;
        return;
    }
    const auto wide = static_cast<utf8proc_int32_t>(c);
    text::append_utf8(
        static_cast<char32_t>(to == Case::kUpper ? utf8proc_toupper(wide) : utf8proc_totitle(wide)),
        out
    );
}

constexpr char32_t kSigma = 0x03a3;
constexpr char32_t kFinalSigma = 0x03c2;

// Appends the lower case of the letter at [begin, end). A sigma at the end of a word has
// its own form.
void append_lower(std::string_view text, std::size_t begin, std::size_t end, std::string& out) {
    std::size_t pos = begin;
    const char32_t c = text::next_code_point(text, pos);
    if (c != kSigma) {
        text::append_lowercase(c, out);
        return;
    }
    bool is_after_letter = false;
    for (std::size_t i = begin; i > 0;) {
        --i;
        while (i > 0 && text::is_continuation_byte(text[i])) --i;
        std::size_t at = i;
        const char32_t before = text::next_code_point(text, at);
        if (before == '\'' || before == '.') continue;  // do not end a word
        is_after_letter = is_cased(before);
        break;
    }
    std::size_t next = end;
    const bool is_before_letter = next < text.size() && is_cased(text::next_code_point(text, next));
    text::append_utf8(is_after_letter && !is_before_letter ? kFinalSigma : char32_t{0x03c3}, out);
}

// Calls f with each code point and its bytes [begin, end).
template <class F>
void for_each_code_point(std::string_view text, F&& f) {
    for (std::size_t pos = 0; pos < text.size();) {
        const std::size_t begin = pos;
        const char32_t c = text::next_code_point(text, pos);
        f(c, begin, pos);
    }
}

}  // namespace

std::size_t num_code_points(std::string_view text) {
    std::size_t count = 0;
    for (const char c : text) count += text::is_continuation_byte(c) ? 0U : 1U;
    return count;
}

std::size_t byte_at(std::string_view text, std::size_t index) {
    std::size_t pos = 0;
    while (index-- > 0 && pos < text.size()) pos += text::utf8_len(text[pos]);
    return pos;
}

std::vector<std::string_view> code_points_of(std::string_view text) {
    std::vector<std::string_view> all;
    for (std::size_t pos = 0; pos < text.size();) {
        const std::size_t len = text::utf8_len(text[pos]);
        all.push_back(text.substr(pos, len));
        pos += len;
    }
    return all;
}

bool is_python_space(char32_t c) {
    // The four separators are white space in Python, but not in Unicode.
    return (c >= 0x1c && c <= 0x1f) || text::is_white_space(c);
}

std::string to_lower(std::string_view text) {
    std::string out;
    for_each_code_point(text, [&](char32_t, std::size_t begin, std::size_t end) {
        append_lower(text, begin, end, out);
    });
    return out;
}

std::string to_upper(std::string_view text) {
    std::string out;
    for_each_code_point(text, [&](char32_t c, std::size_t, std::size_t) {
        append_cased(c, Case::kUpper, out);
    });
    return out;
}

std::string to_capitalized(std::string_view text) {
    std::string out;
    for_each_code_point(text, [&](char32_t c, std::size_t begin, std::size_t end) {
        if (begin == 0) {
            append_cased(c, Case::kTitle, out);
        } else {
            append_lower(text, begin, end, out);
        }
    });
    return out;
}

std::string to_title(std::string_view text) {
    std::string out;
    bool is_in_word = false;
    for_each_code_point(text, [&](char32_t c, std::size_t begin, std::size_t end) {
        if (is_in_word) {
            append_lower(text, begin, end, out);
        } else {
            append_cased(c, Case::kTitle, out);
        }
        is_in_word = is_cased(c);
    });
    return out;
}

std::string swap_case(std::string_view text) {
    std::string out;
    for_each_code_point(text, [&](char32_t c, std::size_t begin, std::size_t end) {
        if (is_upper_case(c)) {
            append_lower(text, begin, end, out);
        } else if (is_lower_case(c)) {
            append_cased(c, Case::kUpper, out);
        } else {
            out += text.substr(begin, end - begin);
        }
    });
    return out;
}

bool is_all(std::string_view text, TextClass text_class) {
    bool all = !text.empty();
    bool any_cased = false;
    for_each_code_point(text, [&](char32_t c, std::size_t, std::size_t) {
        const utf8proc_category_t category = category_of(c);
        const bool is_alpha = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
        // Superscripts are digits in Python; no other characters of category No are.
        const bool is_digit = category == UTF8PROC_CATEGORY_ND || c == 0xb2 || c == 0xb3 ||
                              c == 0xb9 || (c >= 0x2070 && c <= 0x2089 && c != 0x2071);
        switch (text_class) {
            case TextClass::kAlpha:
                all &= is_alpha;
                break;
            case TextClass::kDigit:
                all &= is_digit;
                break;
            case TextClass::kAlnum:
                all &= is_alpha || is_digit || category == UTF8PROC_CATEGORY_NO ||
                       category == UTF8PROC_CATEGORY_NL;
                break;
            case TextClass::kSpace:
                all &= is_python_space(c);
                break;
            case TextClass::kLower:
                all &= !is_upper_case(c) && !is_title_case(c);
                any_cased |= is_lower_case(c);
                break;
            case TextClass::kUpper:
                all &= !is_lower_case(c) && !is_title_case(c);
                any_cased |= is_upper_case(c);
                break;
        }
    });
    const bool asks_case = text_class == TextClass::kLower || text_class == TextClass::kUpper;
    return asks_case ? all && any_cased : all;
}

namespace {

template <class IsStripped>
std::string_view strip_if(std::string_view text, StripSide side, IsStripped is_stripped) {
    std::size_t begin = 0;
    while (side != StripSide::kRight && begin < text.size()) {
        const std::size_t len = text::utf8_len(text[begin]);
        if (!is_stripped(text.substr(begin, len))) break;
        begin += len;
    }
    std::size_t end = text.size();
    while (side != StripSide::kLeft && end > begin) {
        std::size_t last = end - 1;
        while (last > begin && text::is_continuation_byte(text[last])) --last;
        if (!is_stripped(text.substr(last, end - last))) break;
        end = last;
    }
    return text.substr(begin, end - begin);
}

}  // namespace

std::string_view strip(std::string_view text, StripSide side) {
    return strip_if(text, side, [](std::string_view one) {
        std::size_t pos = 0;
        return is_python_space(text::next_code_point(one, pos));
    });
}

Result<std::string_view> strip(
    std::string_view text, std::string_view characters, StripSide side, Budget& budget
) {
    RETURN_IF_ERROR(budget.items(num_code_points(characters), sizeof(std::string_view)));
    RETURN_IF_ERROR(budget.look_up(characters.size()));  // the characters are sorted
    RETURN_IF_ERROR(budget.look_up(text.size()));
    std::vector<std::string_view> set = code_points_of(characters);
    std::ranges::sort(set);
    return strip_if(text, side, [&set](std::string_view one) {
        return std::ranges::binary_search(set, one);
    });
}

std::size_t find_text(std::string_view text, std::string_view part) {
    if (part.empty()) return 0;
    if (text.empty()) return std::string_view::npos;
    const void* found = ::memmem(text.data(), text.size(), part.data(), part.size());
    if (found == nullptr) return std::string_view::npos;
    return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

Result<std::size_t> find_text(std::string_view text, std::string_view part, Budget& budget) {
    RETURN_IF_ERROR(budget.look_up(text.size()));
    return find_text(text, part);
}

Result<std::size_t> find_last_text(std::string_view text, std::string_view part, Budget& budget) {
    if (part.size() > text.size()) return std::string_view::npos;
    RETURN_IF_ERROR(budget.items(2, text.size()));
    RETURN_IF_ERROR(budget.look_up(text.size()));
    const std::string backwards(text.rbegin(), text.rend());
    const std::size_t at = find_text(backwards, std::string(part.rbegin(), part.rend()));
    return at == std::string_view::npos ? at : text.size() - part.size() - at;
}

}  // namespace pitstop::jinja
