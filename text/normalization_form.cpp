#include "text/normalization_form.h"

#include "base/check.h"
#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

namespace pitstop::text {
namespace {

// A set of code points with one bit each. Every code point of a text can be tested cheaply.
class CodePointBits {
  public:
    explicit CodePointBits(std::span<const CodePointRange> ranges) : bits_(kCodePointMax + 1) {
        for (const CodePointRange& range : ranges) {
            for (char32_t c = range.first; c <= range.last; ++c) bits_[c] = true;
        }
    }
    [[nodiscard]] bool contains(char32_t c) const { return bits_[c]; }

  private:
    std::vector<bool> bits_;
};

const CodePointBits& nfc_sensitive_bits() {
    static const CodePointBits bits(nfc_sensitive());
    return bits;
}

const CodePointBits& newer_bits() {
    static const CodePointBits bits(not_in_unicode_9());
    return bits;
}

// Sorts marks by class. Marks of the same class keep their order.
void order_marks(std::vector<utf8proc_int32_t>& text) {
    const auto class_of = [](utf8proc_int32_t c) {
        return utf8proc_get_property(c)->combining_class;
    };
    for (std::size_t i = 0; i < text.size(); ++i) {
        std::size_t end = i;
        while (end < text.size() && class_of(text[end]) != 0) ++end;
        if (end - i > 1) {
            std::stable_sort(
                text.begin() + static_cast<std::ptrdiff_t>(i),
                text.begin() + static_cast<std::ptrdiff_t>(end),
                [&](utf8proc_int32_t a, utf8proc_int32_t b) { return class_of(a) < class_of(b); }
            );
        }
        i = end;
    }
}

// Appends the normal form of a stretch that has no newer code points.
void append_normalized(NormalizationForm form, std::string_view text, std::string& out) {
    const bool compat = form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd;
    const bool compose = form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc;
    const auto decompose = static_cast<utf8proc_option_t>(
        UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0)
    );
    std::vector<utf8proc_int32_t> points;
    points.reserve(text.size());
    for (std::size_t pos = 0; pos < text.size();) {
        utf8proc_int32_t parts[32];  // the longest decomposition has 18
        const auto code_point = static_cast<utf8proc_int32_t>(next_code_point(text, pos));
        const utf8proc_ssize_t num_parts =
            utf8proc_decompose_char(code_point, parts, std::size(parts), decompose, nullptr);
        CHECK(num_parts >= 0 && num_parts <= static_cast<utf8proc_ssize_t>(std::size(parts)));
        points.insert(points.end(), parts, parts + num_parts);
    }
    order_marks(points);
    auto num_points = static_cast<utf8proc_ssize_t>(points.size());
    if (compose) {
        const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        num_points = utf8proc_normalize_utf32(points.data(), num_points, options);
        CHECK(num_points >= 0);
    }
    for (utf8proc_ssize_t i = 0; i < num_points; ++i) {
        append_utf8(static_cast<char32_t>(points[static_cast<std::size_t>(i)]), out);
    }
}

// For NFC, looks only at code points that NFC may change, and at the code point before each,
// because the two may join. A code point that NFC may not change begins a new stretch.
void normalize_nfc(std::string& text) {
    const CodePointBits& sensitive = nfc_sensitive_bits();
    std::string out;
    std::size_t done = 0;      // `out` has text[0, done)
    std::size_t previous = 0;  // the begin of the code point before `pos`
    for (std::size_t pos = 0; pos < text.size();) {
        const std::size_t begin = pos;
        // No code point below U+0300 is sensitive. U+0300 begins with the byte 0xcc.
        if (static_cast<unsigned char>(text[pos]) < 0xcc) {
            pos += utf8_len(text[pos]);
            previous = begin;
            continue;
        }
        if (!sensitive.contains(next_code_point(text, pos))) {
            previous = begin;
            continue;
        }
        while (pos < text.size()) {
            std::size_t after = pos;
            if (!sensitive.contains(next_code_point(text, after))) break;
            pos = after;
        }
        // No code point joins a newer one.
        std::size_t at = previous;
        if (newer_bits().contains(next_code_point(text, at))) previous = begin;
        previous = std::max(previous, done);
        out.append(text, done, previous - done);
        append_normalized(
            NormalizationForm::kNfc, std::string_view(text).substr(previous, pos - previous), out
        );
        done = pos;
        previous = pos;
    }
    if (done == 0) return;
    out.append(text, done, text.size() - done);
    text = std::move(out);
}

}  // namespace

void normalize(NormalizationForm form, std::string& text) {
    const bool is_ascii = std::all_of(text.begin(), text.end(), [](char c) {
        return static_cast<unsigned char>(c) < 0x80;
    });
    if (is_ascii) return;
    if (form == NormalizationForm::kNfc) {
        normalize_nfc(text);
        return;
    }
    std::string out;
    std::size_t begin = 0;  // the begin of the stretch without newer code points
    for (std::size_t pos = 0; pos < text.size();) {
        const std::size_t at = pos;
        if (!newer_bits().contains(next_code_point(text, pos))) continue;
        append_normalized(form, std::string_view(text).substr(begin, at - begin), out);
        out.append(text, at, pos - at);
        begin = pos;
    }
    append_normalized(form, std::string_view(text).substr(begin), out);
    text = std::move(out);
}

}  // namespace pitstop::text
