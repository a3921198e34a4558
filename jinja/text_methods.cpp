#include "jinja/text_methods.h"

#include "jinja/builtins.h"
#include "jinja/python_text.h"
#include "text/utf8.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace pitstop::jinja {
namespace {

// Removes each '_' between two digits, as Python does in numbers; nothing if '_' occurs elsewhere.
std::optional<std::string> without_joints(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '_') {
            out += text[i];
            continue;
        }
        const auto is_part = [&](std::size_t at) {
            if (at >= text.size()) return false;
            const char c = text[at];
            return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        };
        if (i == 0 || !is_part(i - 1) || !is_part(i + 1)) return std::nullopt;
    }
    return out;
}

bool is_line_end(char32_t c) {
    return (c >= '\n' && c <= '\r') || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

}  // namespace

Result<std::string> replace_all(
    std::string_view text,
    std::string_view from,
    std::string_view to,
    std::int64_t count,
    Budget& budget
) {
    TextBuilder out(budget);
    out.look_up(text.size());
    std::size_t pos = 0;
    for (; count != 0 && !out.is_full(); --count) {
        if (from.empty()) {  // inserts before, between and after all characters
            out.add(to);
            if (pos == text.size()) return out.take();
            const std::size_t len = text::utf8_len(text[pos]);
            out.add(text.substr(pos, len));
            pos += len;
            continue;
        }
        const std::size_t found = find_text(text.substr(pos), from);
        if (found == std::string_view::npos) break;
        out.add(text.substr(pos, found));
        out.add(to);
        pos += found + from.size();
    }
    out.add(text.substr(pos));
    return out.take();
}

Result<std::string> justify(
    std::string_view text, std::int64_t width, std::string_view fill, Justify how, Budget& budget
) {
    RETURN_IF_ERROR(budget.scan(text.size() + fill.size()));
    if (num_code_points(fill) != 1) return type_error("the fill must be one character");
    const auto len = static_cast<std::int64_t>(num_code_points(text));
    const std::int64_t missing = std::max<std::int64_t>(width - len, 0);
    std::int64_t left = 0;
    if (how == Justify::kRight) left = missing;
    if (how == Justify::kCenter) left = missing / 2 + (missing & width & 1);  // rounds like CPython
    TextBuilder out(budget);
    out.add(fill, static_cast<std::size_t>(left));
    out.add(text);
    out.add(fill, static_cast<std::size_t>(missing - left));
    return out.take();
}

Result<std::vector<std::string_view>> split_lines(
    std::string_view text, bool keeps_ends, Budget& budget
) {
    RETURN_IF_ERROR(budget.look_up(text.size()));
    std::vector<std::string_view> lines;
    std::size_t begin = 0;
    for (std::size_t pos = 0; pos < text.size();) {
        const std::size_t end = pos;
        const char32_t c = text::next_code_point(text, pos);
        if (!is_line_end(c)) continue;
        if (c == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
        RETURN_IF_ERROR(budget.bytes(sizeof(std::string_view)));
        lines.push_back(text.substr(begin, (keeps_ends ? pos : end) - begin));
        begin = pos;
    }
    if (begin < text.size()) lines.push_back(text.substr(begin));
    return lines;
}

std::optional<Value> parse_whole(std::string_view text, std::int64_t base) {
    text = strip(text, StripSide::kBoth);
    const bool is_negative = text.starts_with('-');
    if (is_negative || text.starts_with('+')) text.remove_prefix(1);
    if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
    bool has_prefix = false;
    if (text.size() > 2 && text.front() == '0') {
        const char mark = static_cast<char>(text[1] | 0x20);
        const std::int64_t marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
        if (marked != 0 && (base == 0 || base == marked)) {
            base = marked;
            text.remove_prefix(2);
            if (text.starts_with('_')) text.remove_prefix(1);
            has_prefix = true;
        }
    }
    if (base == 0) base = 10;
    const std::optional<std::string> digits = without_joints(text);
    if (!digits || digits->empty() || digits->front() == '-' || digits->front() == '+') {
        return std::nullopt;
    }
    std::int64_t value = 0;
    const std::string signed_digits = (is_negative ? "-" : "") + *digits;
    const char* const end = signed_digits.data() + signed_digits.size();
    const auto read = std::from_chars(signed_digits.data(), end, value, static_cast<int>(base));
    if (read.ptr != end) return std::nullopt;
    if (read.ec == std::errc{}) return Value::integer(value);
    if (base != 10 || has_prefix) return std::nullopt;
    const std::size_t zeros = digits->find_first_not_of('0');
    return Value::big_integer((is_negative ? "-" : "") + digits->substr(zeros));
}

std::optional<double> parse_real(std::string_view text) {
    const std::optional<std::string> digits = without_joints(strip(text, StripSide::kBoth));
    if (!digits || digits->empty()) return std::nullopt;
    std::string_view rest = *digits;
    const bool has_plus = rest.starts_with('+');
    if (has_plus) rest.remove_prefix(1);
    if (rest.empty() || (has_plus && (rest.front() == '-' || rest.front() == '+'))) {
        return std::nullopt;
    }
    // from_chars would also accept "nan(...)" with a payload.
    if (rest.find('(') != std::string_view::npos) return std::nullopt;
    double value = 0;
    const auto read = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (read.ptr != rest.data() + rest.size()) return std::nullopt;
    if (read.ec == std::errc::result_out_of_range) {
        // The number is too large or too small: Python returns inf or 0.
        const bool is_negative = rest.front() == '-';
        const std::size_t e = rest.find_first_of("eE");
        const bool is_small = e != std::string_view::npos && rest.substr(e + 1).starts_with('-');
        const double magnitude = is_small ? 0.0 : HUGE_VAL;
        return is_negative ? -magnitude : magnitude;
    }
    return value;
}

}  // namespace pitstop::jinja
