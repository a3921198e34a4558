#include "jinja/python_repr.h"

#include "text/utf8.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

namespace pitstop::jinja {
namespace {

bool is_printable(char32_t c) {
    if (c == ' ') return true;
    switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
        case UTF8PROC_CATEGORY_CC:
        case UTF8PROC_CATEGORY_CF:
        case UTF8PROC_CATEGORY_CS:
        case UTF8PROC_CATEGORY_CO:
        case UTF8PROC_CATEGORY_CN:
        case UTF8PROC_CATEGORY_ZL:
        case UTF8PROC_CATEGORY_ZP:
        case UTF8PROC_CATEGORY_ZS:
            return false;
        default:
            return true;
    }
}

// Text is flushed in pieces of this size, which bounds the uncharged part.
constexpr std::size_t kPieceBytes = 4096;

bool write_repr_of_text(std::string_view text, TextBuilder& out) {
    if (!out.look_up(text.size())) return false;
    const bool has_single = text.find('\'') != std::string_view::npos;
    const bool has_double = text.find('"') != std::string_view::npos;
    const char quote = has_single && !has_double ? '"' : '\'';
    std::string quoted(1, quote);
    for (std::size_t pos = 0; pos < text.size();) {
        const std::size_t begin = pos;
        const char32_t c = text::next_code_point(text, pos);
        if (c == '\\' || c == static_cast<char32_t>(quote)) {
            quoted += '\\';
            quoted += static_cast<char>(c);
        } else if (c == '\n') {
            quoted += "\\n";
        } else if (c == '\r') {
            quoted += "\\r";
        } else if (c == '\t') {
            quoted += "\\t";
        } else if (is_printable(c)) {
            quoted += text.substr(begin, pos - begin);
        } else if (c < 0x100) {
            quoted += fmt::format("\\x{:02x}", static_cast<std::uint32_t>(c));
        } else if (c < 0x10000) {
            quoted += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c));
        } else {
            quoted += fmt::format("\\U{:08x}", static_cast<std::uint32_t>(c));
        }
        if (quoted.size() < kPieceBytes) continue;
        if (!out.add(quoted)) return false;
        quoted.clear();
    }
    quoted += quote;
    return out.add(quoted);
}

bool write_items(
    std::string_view open, const std::vector<Value>& items, std::string_view close, TextBuilder& out
) {
    out.add(open);
    for (std::size_t i = 0; i < items.size(); ++i) {
        if (i != 0) out.add(", ");
        if (!write_repr(items[i], out)) return false;
    }
    return out.add(close);
}

bool write_sequence(const Sequence& sequence, TextBuilder& out) {
    switch (sequence.kind) {
        case SequenceKind::kList:
            return write_items("[", sequence.items, "]", out);
        case SequenceKind::kTuple:
            return write_items("(", sequence.items, sequence.items.size() == 1 ? ",)" : ")", out);
        case SequenceKind::kRange:
            return out.add(sequence.range);
        case SequenceKind::kKeys:
            return write_items("dict_keys([", sequence.items, "])", out);
        case SequenceKind::kValues:
            return write_items("dict_values([", sequence.items, "])", out);
        case SequenceKind::kItems:
            return write_items("dict_items([", sequence.items, "])", out);
    }
    return out.add("");
}

bool write_mapping(const Mapping& mapping, TextBuilder& out) {
    out.add("{");
    bool is_first = true;
    for (const auto& [key, value] : mapping.entries()) {
        if (!std::exchange(is_first, false)) out.add(", ");
        write_repr(key, out);
        out.add(": ");
        if (!write_repr(value, out)) return false;
    }
    return out.add("}");
}

}  // namespace

std::string repr_of(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
    std::array<char, 32> buffer{};
    const auto shortest = std::to_chars(
        buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific
    );
    std::string_view text(buffer.data(), static_cast<std::size_t>(shortest.ptr - buffer.data()));
    std::string out;
    if (text.front() == '-') {
        out = "-";
        text.remove_prefix(1);
    }
    const std::size_t e = text.find('e');
    int exponent = 0;
    const std::string_view exponent_text = text.substr(text[e + 1] == '+' ? e + 2 : e + 1);
    std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
    std::string digits(1, text.front());
    if (e > 1) digits += text.substr(2, e - 2);
    // For 1e-4 <= |value| < 1e16 Python writes plain digits.
    const int num_digits = static_cast<int>(digits.size());
    if (exponent < -4 || exponent >= 16) {
        out += digits.front();
        if (num_digits > 1) out += "." + digits.substr(1);
        return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
    }
    if (exponent < 0) {
        return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
    }
    if (num_digits <= exponent + 1) {
        return out + digits +
               std::string(static_cast<std::size_t>(exponent + 1 - num_digits), '0') + ".0";
    }
    const auto point = static_cast<std::size_t>(exponent + 1);
    return out + digits.substr(0, point) + "." + digits.substr(point);
}

std::string formatted(double value, const std::string& format) {
    const int len = std::snprintf(nullptr, 0, format.c_str(), value);
    std::string out(static_cast<std::size_t>(len > 0 ? len : 0) + 1, '\0');
    std::snprintf(out.data(), out.size(), format.c_str(), value);
    out.pop_back();
    return out;
}

bool write_str(const Value& value, TextBuilder& out) {
    if (const Text* text = value.as_text()) return out.add(text->bytes);
    if (value.is_undefined()) return out.add("");
    return write_repr(value, out);
}

bool write_repr(const Value& value, TextBuilder& out) {
    if (const Text* text = value.as_text()) {
        if (!text->is_markup) return write_repr_of_text(text->bytes, out);
        out.add("Markup(");
        write_repr_of_text(text->bytes, out);
        return out.add(")");
    }
    if (value.is_undefined()) return out.add("Undefined");
    if (value.is_none()) return out.add("None");
    if (const bool* flag = value.get_if<bool>()) return out.add(*flag ? "True" : "False");
    if (const auto* integer = value.get_if<std::int64_t>())
        return out.add(fmt::to_string(*integer));
    if (const auto* big = value.get_if<BigInteger>()) return out.add(*big->digits);
    if (const double* real = value.get_if<double>()) return out.add(repr_of(*real));
    if (const Sequence* sequence = value.as_sequence()) return write_sequence(*sequence, out);
    if (const Mapping* mapping = value.as_mapping()) return write_mapping(*mapping, out);
    if (Namespace* const* space = value.get_if<Namespace*>()) {
        out.add("<Namespace ");
        // A namespace may contain itself; the budget ends an endless repr.
        static constexpr int kInsideMax = 64;
        thread_local int depth = 0;
        ++depth;
        if (depth < kInsideMax) write_mapping((*space)->attributes, out);
        --depth;
        return out.add(">");
    }
    return out.add(fmt::format("<{}>", value.type_name()));
}

Result<std::string> str_of(const Value& value, Budget& budget) {
    TextBuilder out(budget);
    write_str(value, out);
    return out.take();
}

void write_escaped(std::string_view text, TextBuilder& out) {
    static constexpr std::string_view kSpecial = "&<>'\"";
    while (!out.is_full()) {
        const std::size_t at = std::min(text.find_first_of(kSpecial), text.size());
        out.add(text.substr(0, at));
        if (at == text.size()) return;
        switch (text[at]) {
            case '&':
                out.add("&amp;");
                break;
            case '<':
                out.add("&lt;");
                break;
            case '>':
                out.add("&gt;");
                break;
            case '\'':
                out.add("&#39;");
                break;
            default:
                out.add("&#34;");
                break;
        }
        text.remove_prefix(at + 1);
    }
}

Result<std::string> escaped(std::string_view text, Budget& budget) {
    TextBuilder out(budget);
    write_escaped(text, out);
    return out.take();
}

}  // namespace pitstop::jinja
