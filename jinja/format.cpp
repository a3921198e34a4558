#include "jinja/format.h"

#include "base/utf8.h"
#include "jinja/json.h"
#include "jinja/operators.h"
#include "jinja/python_text.h"
#include "text/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace pitstop::jinja {
namespace {

constexpr int kWidthMax = 1 << 20;
constexpr int kPrecisionMax = 100;

// How one value is written: what both languages of formats come down to.
struct Spec {
    std::string fill = " ";
    char align = '\0';  // < > ^ =; none: the type's own
    char sign = '-';
    bool is_alternate = false;
    char grouping = '\0';
    int width = 0;
    std::optional<int> precision{};
    char type = '\0';
};

Result<std::string> padded(
    std::string text, const Spec& spec, char own_align, std::size_t sign_len, Budget& budget
) {
    RETURN_IF_ERROR(budget.scan(text.size()));
    const std::size_t len = num_code_points(text);
    const auto width = static_cast<std::size_t>(spec.width);
    if (len >= width) return text;
    const std::size_t missing = width - len;
    std::size_t before = missing;  // of the fill, in front of what follows the sign
    std::size_t kept = 0;          // in front of the fill
    switch (spec.align == '\0' ? own_align : spec.align) {
        case '<':
            before = 0;
            break;
        case '^':
            before = missing / 2;
            break;
        case '=':
            kept = sign_len;
            break;
        default:
            break;
    }
    TextBuilder out(budget);
    out.add(std::string_view(text).substr(0, kept));
    out.add(spec.fill, before);
    out.add(std::string_view(text).substr(kept));
    out.add(spec.fill, missing - before);
    return out.take();
}

std::string grouped(const std::string& digits, char separator, std::size_t group_len) {
    std::string out;
    for (std::size_t i = 0; i < digits.size(); ++i) {
        if (i != 0 && (digits.size() - i) % group_len == 0) out += separator;
        out += digits[i];
    }
    return out;
}

std::string sign_of(bool is_negative, char sign) {
    if (is_negative) return "-";
    return sign == '+' ? "+" : sign == ' ' ? " " : "";
}

Result<std::string> write_whole(std::int64_t value, const Spec& spec, Budget& budget) {
    const bool is_negative = value < 0;
    const std::uint64_t magnitude =
        is_negative ? ~static_cast<std::uint64_t>(value) + 1 : static_cast<std::uint64_t>(value);
    std::string digits;
    std::string prefix;
    switch (spec.type) {
        case 'x':
            digits = fmt::format("{:x}", magnitude);
            prefix = "0x";
            break;
        case 'X':
            digits = fmt::format("{:X}", magnitude);
            prefix = "0X";
            break;
        case 'o':
            digits = fmt::format("{:o}", magnitude);
            prefix = "0o";
            break;
        case 'b':
            digits = fmt::format("{:b}", magnitude);
            prefix = "0b";
            break;
        case 'c': {
            if (value < 0 || value > static_cast<std::int64_t>(text::kCodePointMax) ||
                (value >= 0xd800 && value < 0xe000)) {
                return type_error("{} is no code point", value);
            }
            std::string one;
            text::append_utf8(static_cast<char32_t>(value), one);
            return padded(one, spec, '<', 0, budget);
        }
        default:
            digits = fmt::to_string(magnitude);
            break;
    }
    const bool is_decimal = prefix.empty();
    if (spec.grouping != '\0') digits = grouped(digits, spec.grouping, is_decimal ? 3 : 4);
    const std::string sign = sign_of(is_negative, spec.sign) + (spec.is_alternate ? prefix : "");
    return padded(sign + digits, spec, '>', sign.size(), budget);
}

Result<std::string> write_real(double value, const Spec& spec, Budget& budget) {
    const char type = spec.type == '\0' ? (spec.precision ? 'g' : 'r') : spec.type;
    const bool is_negative = std::signbit(value) && !std::isnan(value);
    const double magnitude = std::abs(value);
    std::string digits;
    if (!std::isfinite(value)) {
        digits = std::isnan(value) ? "nan" : "inf";
        if (type == 'F' || type == 'E' || type == 'G') {
            std::ranges::transform(digits, digits.begin(), [](char c) {
                return static_cast<char>(c - 'a' + 'A');
            });
        }
        if (type == '%') digits += '%';
    } else if (type == 'r') {
        digits = repr_of(magnitude);
    } else if (type == '%') {
        digits = formatted(magnitude * 100, fmt::format("%.{}f", spec.precision.value_or(6))) + "%";
    } else {
        const char c = type == 'n' ? 'g' : type;
        digits = formatted(
            magnitude,
            fmt::format("%{}.{}{}", spec.is_alternate ? "#" : "", spec.precision.value_or(6), c)
        );
        // Without a type a real stays recognizable as one.
        const bool shows_point = digits.find_first_of(".e") != std::string::npos;
        if (spec.type == '\0' && !shows_point) digits += ".0";
    }
    if (spec.grouping != '\0') {
        const std::size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
        digits = grouped(digits.substr(0, end), spec.grouping, 3) + digits.substr(end);
    }
    const std::string sign = sign_of(is_negative, spec.sign);
    return padded(sign + digits, spec, '>', sign.size(), budget);
}

// ---- the % operator ----

class PercentFormat {
  public:
    PercentFormat(std::string_view format, const Value& args, Budget& budget)
        : format_(format), args_(args), out_(budget), budget_(budget) {}

    Result<std::string> run() {
        while (pos_ < format_.size()) {
            const std::size_t percent = std::min(format_.find('%', pos_), format_.size());
            out_.add(format_.substr(pos_, percent - pos_));
            pos_ = percent;
            if (pos_ == format_.size()) break;
            ++pos_;
            RETURN_IF_ERROR(conversion());
        }
        const Sequence* tuple = tuple_of_args();
        const std::size_t num_args = tuple != nullptr ? tuple->items.size() : 1;
        // Python takes whatever can be subscripted for a mapping of names.
        const bool may_be_names =
            tuple == nullptr && (args_.as_mapping() != nullptr || args_.as_sequence() != nullptr ||
                                 args_.is_undefined());
        if (next_ < num_args && !may_be_names) {
            return type_error("not all arguments of the format were used");
        }
        return out_.take();
    }

  private:
    [[nodiscard]] const Sequence* tuple_of_args() const {
        const Sequence* sequence = args_.as_sequence();
        return sequence != nullptr && sequence->kind == SequenceKind::kTuple ? sequence : nullptr;
    }
    Result<Value> next_arg() {
        const Sequence* tuple = tuple_of_args();
        const std::size_t index = next_++;
        if (tuple == nullptr && index == 0) return args_;
        if (tuple == nullptr || index >= tuple->items.size()) {
            return type_error("not enough arguments for the format");
        }
        return tuple->items[index];
    }
    [[nodiscard]] char peek() const { return pos_ < format_.size() ? format_[pos_] : '\0'; }

    Result<int> number(int max) {
        if (peek() == '*') {
            ++pos_;
            ASSIGN_OR_RETURN(const Value value, next_arg());
            if (!value.is_whole()) return type_error("'*' in a format needs an integer");
            return static_cast<int>(std::clamp<std::int64_t>(value.whole(), -max, max));
        }
        int value = 0;
        while (peek() >= '0' && peek() <= '9') {
            value = std::min(value * 10 + (format_[pos_++] - '0'), max);
        }
        return value;
    }

    Result<> conversion() {
        RETURN_IF_ERROR(budget_.steps());
        std::optional<Value> named;
        if (peek() == '(') {
            const std::size_t end = format_.find(')', pos_);
            if (end == std::string_view::npos) return type_error("a format's key is not closed");
            const Mapping* mapping = args_.as_mapping();
            if (mapping == nullptr) return type_error("the format needs a mapping");
            const std::string_view key = format_.substr(pos_ + 1, end - pos_ - 1);
            const Value* found = mapping->find(key);
            if (found == nullptr)
                return type_error("the format's key '{}' is not there", utf8_prefix(key, 256));
            named = *found;
            pos_ = end + 1;
        }
        Spec spec;
        bool is_left = false;
        bool pads_zeros = false;
        for (;; ++pos_) {
            if (peek() == '-')
                is_left = true;
            else if (peek() == '+')
                spec.sign = '+';
            else if (peek() == ' ')
                spec.sign = spec.sign == '+' ? '+' : ' ';
            else if (peek() == '#')
                spec.is_alternate = true;
            else if (peek() == '0')
                pads_zeros = true;
            else
                break;
        }
        ASSIGN_OR_RETURN(spec.width, number(kWidthMax));
        if (spec.width < 0) {
            is_left = true;
            spec.width = -spec.width;
        }
        if (peek() == '.') {
            ++pos_;
            ASSIGN_OR_RETURN(const int precision, number(kPrecisionMax));
            spec.precision = std::max(precision, 0);
        }
        while (peek() == 'h' || peek() == 'l' || peek() == 'L') ++pos_;
        const char type = peek();
        if (type == '\0') return type_error("an incomplete format");
        ++pos_;
        if (type == '%') {
            out_.add("%");
            return Ok{};
        }
        Value value;
        if (named) {
            value = *std::move(named);
        } else {
            ASSIGN_OR_RETURN(value, next_arg());
        }
        spec.align = is_left ? '<' : '>';
        if (pads_zeros && !is_left && type != 's' && type != 'r' && type != 'a' && type != 'c') {
            spec.align = '=';
            spec.fill = "0";
        }
        return write(value, spec, type);
    }

    Result<> write(const Value& value, Spec spec, char type) {
        TextBuilder text(budget_);
        switch (type) {
            case 's':
            case 'r':
            case 'a': {
                if (type == 's') {
                    write_str(value, text);
                } else {
                    write_repr(value, text);
                }
                ASSIGN_OR_RETURN(std::string written, text.take());
                if (spec.precision) {
                    written.resize(byte_at(written, static_cast<std::size_t>(*spec.precision)));
                }
                return add_padded(std::move(written), spec, 0);
            }
            case 'c': {
                const Text* one = value.as_text();
                if (one != nullptr && one->bytes.size() <= 4 && num_code_points(one->bytes) == 1) {
                    return add_padded(one->bytes, spec, 0);
                }
                if (!value.is_whole()) return type_error("%c needs an integer or one character");
                spec.type = 'c';
                break;
            }
            case 'd':
            case 'i':
            case 'u':
                if (const auto* big = value.get_if<BigInteger>()) {
                    RETURN_IF_ERROR(budget_.bytes(big->digits->size()));
                    return add_padded(*big->digits, spec, big->digits->starts_with('-') ? 1 : 0);
                }
                if (!value.is_number())
                    return type_error("%d needs a number, not {}", value.type_name());
                spec.type = 'd';
                break;
            case 'x':
            case 'X':
            case 'o':
                if (!value.is_whole()) return type_error("%{} needs an integer", type);
                spec.type = type;
                break;
            case 'e':
            case 'E':
            case 'f':
            case 'F':
            case 'g':
            case 'G': {
                if (!value.is_number())
                    return type_error("%{} needs a number, not {}", type, value.type_name());
                spec.type = type;
                ASSIGN_OR_RETURN(
                    const std::string written, write_real(value.number(), spec, budget_)
                );
                out_.add(written);
                return Ok{};
            }
            default:
                return type_error("the format has an unknown conversion '%{}'", type);
        }
        std::int64_t whole = 0;
        if (value.is_whole()) {
            whole = value.whole();
        } else {
            const double real = std::trunc(value.number());
            if (!(std::abs(real) < 9.2e18)) return type_error("%d: an integer beyond 64 bits");
            whole = static_cast<std::int64_t>(real);
        }
        if (spec.precision && spec.type != 'c') {  // so many digits at least
            Spec digits{.fill = "0", .align = '=', .width = *spec.precision, .type = spec.type};
            ASSIGN_OR_RETURN(
                std::string written,
                write_whole(
                    whole < 0 ? (whole == INT64_MIN ? INT64_MAX : -whole) : whole, digits, budget_
                )
            );
            const std::string sign = sign_of(whole < 0, spec.sign);
            return add_padded(sign + written, spec, sign.size());
        }
        ASSIGN_OR_RETURN(const std::string written, write_whole(whole, spec, budget_));
        out_.add(written);
        return Ok{};
    }

    Result<> add_padded(std::string text, const Spec& spec, std::size_t sign_len) {
        ASSIGN_OR_RETURN(
            const std::string out, padded(std::move(text), spec, '>', sign_len, budget_)
        );
        out_.add(out);
        return Ok{};
    }

    std::string_view format_;
    const Value& args_;
    TextBuilder out_;
    Budget& budget_;
    std::size_t pos_ = 0;
    std::size_t next_ = 0;
};

// ---- str.format ----

class BraceFormat {
  public:
    BraceFormat(const Args& args, Budget& budget) : args_(args), budget_(budget) {}

    Result<std::string> run(std::string_view format, int depth) {
        if (depth > 2) return type_error("a format is nested too deep");
        TextBuilder out(budget_);
        for (std::size_t pos = 0; pos < format.size();) {
            const std::size_t brace = std::min(format.find_first_of("{}", pos), format.size());
            if (!out.add(format.substr(pos, brace - pos))) break;
            if (brace == format.size()) break;
            if (brace + 1 < format.size() && format[brace + 1] == format[brace]) {
                out.add(format.substr(brace, 1));
                pos = brace + 2;
                continue;
            }
            if (format[brace] == '}') return type_error("a single '}}' in a format");
            std::size_t end = brace + 1;
            for (int open = 1; end < format.size(); ++end) {
                if (format[end] == '{') ++open;
                if (format[end] == '}' && --open == 0) break;
            }
            if (end >= format.size()) return type_error("a '{{' in a format that is not closed");
            ASSIGN_OR_RETURN(
                const std::string field,
                write_field(format.substr(brace + 1, end - brace - 1), depth)
            );
            out.add(field);
            pos = end + 1;
        }
        return out.take();
    }

  private:
    Result<std::string> write_field(std::string_view field, int depth) {
        RETURN_IF_ERROR(budget_.steps());
        RETURN_IF_ERROR(budget_.bytes(field.size()));
        const std::size_t name_end = std::min(field.find_first_of("!:"), field.size());
        const std::string_view name = field.substr(0, name_end);
        std::string_view rest = field.substr(name_end);
        char conversion = '\0';
        if (rest.starts_with('!')) {
            if (rest.size() < 2) return type_error("a format's conversion is missing");
            conversion = rest[1];
            rest.remove_prefix(2);
            if (!rest.empty() && !rest.starts_with(':')) {
                return type_error("a format's conversion is one character");
            }
        }
        ASSIGN_OR_RETURN(Value value, value_of(name));
        if (conversion == 's' || conversion == 'r') {
            TextBuilder text(budget_);
            if (conversion == 's') {
                write_str(value, text);
            } else {
                write_repr(value, text);
            }
            ASSIGN_OR_RETURN(std::string written, text.take());
            value = Value::text(std::move(written));
        } else if (conversion != '\0') {
            return type_error("a format's conversion is s or r, not '{}'", conversion);
        }
        std::string spec_text;
        if (!rest.empty()) {
            ASSIGN_OR_RETURN(spec_text, run(rest.substr(1), depth + 1));
        }
        return write(value, spec_text);
    }

    Result<Value> value_of(std::string_view name) {
        const std::size_t end = std::min(name.find_first_of(".["), name.size());
        ASSIGN_OR_RETURN(Value value, root_of(name.substr(0, end)));
        for (std::size_t pos = end; pos < name.size();) {
            if (name[pos] == '.') {
                const std::size_t stop = std::min(name.find_first_of(".[", pos + 1), name.size());
                ASSIGN_OR_RETURN(
                    value, get_attribute(value, std::string(name.substr(pos + 1, stop - pos - 1)))
                );
                pos = stop;
            } else {
                const std::size_t stop = name.find(']', pos);
                if (name[pos] != '[' || stop == std::string_view::npos) {
                    return type_error("a format's field '{}' is malformed", utf8_prefix(name, 256));
                }
                const std::string_view key = name.substr(pos + 1, stop - pos - 1);
                std::int64_t index = 0;
                const auto read = std::from_chars(key.data(), key.data() + key.size(), index);
                const bool is_index = read.ec == std::errc{} && read.ptr == key.data() + key.size();
                ASSIGN_OR_RETURN(
                    value,
                    get_item(
                        value,
                        is_index ? Value::integer(index) : Value::text(std::string(key)),
                        budget_
                    )
                );
                pos = stop + 1;
            }
        }
        return value;
    }

    Result<Value> root_of(std::string_view name) {
        std::size_t index = 0;
        const auto read = std::from_chars(name.data(), name.data() + name.size(), index);
        const bool is_index =
            !name.empty() && read.ec == std::errc{} && read.ptr == name.data() + name.size();
        if (name.empty()) index = next_++;
        if (name.empty() || is_index) {
            if (index < args_.positional.size()) return args_.positional[index];
            return type_error("the format has no argument {}", index);
        }
        RETURN_IF_ERROR(budget_.scan(args_.named.size() * sizeof(args_.named[0])));
        for (const auto& [key, value] : args_.named) {
            if (key == name) return value;
        }
        return type_error("the format has no argument '{}'", utf8_prefix(name, 256));
    }

    static bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

    Result<std::string> write(const Value& value, std::string_view text) {
        Spec spec;
        std::size_t pos = 0;
        const auto peek = [&] { return pos < text.size() ? text[pos] : '\0'; };
        if (!text.empty()) {
            const std::size_t first_len = text::utf8_len(text.front());
            if (first_len < text.size() && is_align(text[first_len])) {
                spec.fill = text.substr(0, first_len);
                spec.align = text[first_len];
                pos = first_len + 1;
            } else if (is_align(text.front())) {
                spec.align = text.front();
                pos = 1;
            }
        }
        if (peek() == '+' || peek() == '-' || peek() == ' ') spec.sign = text[pos++];
        if (peek() == '#') {
            spec.is_alternate = true;
            ++pos;
        }
        if (peek() == '0') {
            if (spec.align == '\0') {
                spec.fill = "0";
                spec.align = value.as_text() != nullptr ? '<' : '=';
            }
            ++pos;
        }
        while (peek() >= '0' && peek() <= '9') {
            spec.width = std::min(spec.width * 10 + (text[pos++] - '0'), kWidthMax);
        }
        if (peek() == ',' || peek() == '_') spec.grouping = text[pos++];
        if (peek() == '.') {
            ++pos;
            int precision = 0;
            while (peek() >= '0' && peek() <= '9') {
                precision = std::min(precision * 10 + (text[pos++] - '0'), kPrecisionMax);
            }
            spec.precision = precision;
        }
        if (pos < text.size()) spec.type = text[pos++];
        if (pos != text.size())
            return type_error("the format '{}' is malformed", utf8_prefix(text, 256));
        return written(value, spec, text.empty());
    }

    Result<std::string> written(const Value& value, const Spec& spec, bool is_plain) {
        static constexpr std::string_view kReal = "eEfFgGn%";
        static constexpr std::string_view kWhole = "bcdoxXn";
        if (!is_plain && value.is_whole() && !(value.is<bool>() && spec.type == '\0')) {
            const bool as_real = spec.type != '\0' && spec.type != 'n' &&
                                 kReal.find(spec.type) != std::string_view::npos;
            if (as_real) return write_real(value.number(), spec, budget_);
            if (spec.type != '\0' && kWhole.find(spec.type) == std::string_view::npos) {
                return type_error("the format '{}' is not for integers", spec.type);
            }
            if (spec.precision) return type_error("a precision is not for integers");
            return write_whole(value.whole(), spec, budget_);
        }
        if (!is_plain && value.is<double>()) {
            if (spec.type != '\0' && kReal.find(spec.type) == std::string_view::npos) {
                return type_error("the format '{}' is not for reals", spec.type);
            }
            return write_real(value.number(), spec, budget_);
        }
        if (!is_plain && value.as_text() == nullptr && !value.is<bool>()) {
            return type_error("a format is not for {}", value.type_name());
        }
        if (spec.type != '\0' && spec.type != 's') {
            return type_error("the format '{}' is not for {}", spec.type, value.type_name());
        }
        ASSIGN_OR_RETURN(std::string text, str_of(value, budget_));
        if (spec.precision) text.resize(byte_at(text, static_cast<std::size_t>(*spec.precision)));
        return padded(std::move(text), spec, '<', 0, budget_);
    }

    const Args& args_;
    Budget& budget_;
    std::size_t next_ = 0;
};

}  // namespace

Result<Value> percent_format(const Text& format, const Value& args, Budget& budget) {
    ASSIGN_OR_RETURN(std::string text, PercentFormat(format.bytes, args, budget).run());
    return format.is_markup ? Value::markup(std::move(text)) : Value::text(std::move(text));
}

Result<Value> brace_format(const Text& format, const Args& args, Budget& budget) {
    ASSIGN_OR_RETURN(std::string text, BraceFormat(args, budget).run(format.bytes, 0));
    return format.is_markup ? Value::markup(std::move(text)) : Value::text(std::move(text));
}

}  // namespace pitstop::jinja
