#include "jinja/lexer.h"

#include "jinja/python_text.h"
#include "text/utf8.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace pitstop::jinja {
namespace {

// Jinja reads every line end as \n, and drops one at the end of the source.
std::string with_plain_line_ends(std::string_view source) {
    std::string out;
    out.reserve(source.size());
    for (std::size_t i = 0; i < source.size(); ++i) {
        if (source[i] == '\r') {
            out += '\n';
            if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
        } else {
            out += source[i];
        }
    }
    if (out.ends_with('\n')) out.pop_back();
    return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

// Longest first.
constexpr std::array<std::string_view, 26> kOperators{
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";",
};

class Lexer {
  public:
    explicit Lexer(std::string source) : source_(std::move(source)) {}

    Result<std::vector<Token>> run() {
        while (pos_ < source_.size()) RETURN_IF_ERROR(read_data());
        add(TokenKind::kEnd, "");
        return std::move(tokens_);
    }

  private:
    [[nodiscard]] std::string_view rest() const { return std::string_view(source_).substr(pos_); }
    [[nodiscard]] bool at(std::string_view text) const { return rest().starts_with(text); }

    // Advances and counts lines.
    void skip(std::size_t len) {
        const auto begin = source_.begin() + static_cast<std::ptrdiff_t>(pos_);
        line_ +=
            static_cast<int>(std::count(begin, begin + static_cast<std::ptrdiff_t>(len), '\n'));
        pos_ += len;
        is_line_start_ = len > 0 && source_[pos_ - 1] == '\n';
    }
    void skip_white_space() {
        const std::string_view stripped = strip(rest(), StripSide::kLeft);
        const std::size_t len = rest().size() - stripped.size();
        if (len > 0) skip(len);
    }
    void add(TokenKind kind, std::string text) {
        tokens_.push_back({.kind = kind, .line = line_, .text = std::move(text)});
    }
    template <class... Args>
    [[nodiscard]] Error error(fmt::format_string<Args...> format, Args&&... args) const {
        return make_error(
            ErrorCode::kInvalidArgument,
            "line {}: {}",
            line_,
            fmt::format(format, std::forward<Args>(args)...)
        );
    }

    // Returns `text`, which a tag follows, with its right end trimmed as the tag asks.
    // `begins_line`: the text begins at the start of a line.
    static std::string_view trimmed(
        std::string_view text, char sign, bool strips_indent, bool begins_line
    ) {
        if (sign == '-') return strip(text, StripSide::kRight);
        if (sign == '+' || !strips_indent) return text;
        const std::size_t newline = text.rfind('\n');
        const std::size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
        if (line_begin == 0 && !begins_line) return text;
        const std::string_view indent = text.substr(line_begin);
        if (!indent.empty() && strip(indent, StripSide::kBoth).empty()) {
            return text.substr(0, line_begin);
        }
        return text;
    }

    [[nodiscard]] char sign_at(std::size_t index) const {
        const char c = index < source_.size() ? source_[index] : '\0';
        return c == '-' || c == '+' ? c : '\0';
    }

    // Returns the length of `{% raw %}` at the position, or 0.
    [[nodiscard]] std::size_t raw_tag_len(std::string_view name) const {
        std::size_t i = pos_ + 2;
        if (sign_at(i) != '\0') ++i;
        const auto skip_space = [&] {
            while (i < source_.size() && is_python_space(static_cast<unsigned char>(source_[i])))
                ++i;
        };
        skip_space();
        if (source_.compare(i, name.size(), name) != 0) return 0;
        i += name.size();
        skip_space();
        const std::string_view tail = std::string_view(source_).substr(std::min(i, source_.size()));
        const bool is_end = name == "endraw";
        if (tail.starts_with("-%}")) {
            const std::string_view after = strip(tail.substr(3), StripSide::kLeft);
            return source_.size() - after.size() - pos_;
        }
        if (is_end && tail.starts_with("+%}")) return i + 3 - pos_;
        if (!tail.starts_with("%}")) return 0;
        i += 2;
        // trim_blocks concerns only the end of a block, as in Jinja.
        if (is_end && i < source_.size() && source_[i] == '\n') ++i;
        return i - pos_;
    }

    // Reads text up to the next tag, and the tag.
    Result<> read_data() {
        const bool begins_line = is_line_start_;
        const std::size_t begin = pos_;
        std::size_t tag = begin;
        for (;; ++tag) {
            tag = source_.find('{', tag);
            if (tag == std::string::npos || tag + 1 >= source_.size()) {
                tag = std::string::npos;
                break;
            }
            if (const char c = source_[tag + 1]; c == '{' || c == '%' || c == '#') break;
        }
        const std::size_t end = std::min(tag, source_.size());
        const std::string_view text = std::string_view(source_).substr(begin, end - begin);
        if (tag == std::string::npos) {
            if (!text.empty()) add(TokenKind::kData, std::string(text));
            skip(text.size());
            return Ok{};
        }
        const char kind = source_[tag + 1];
        const std::string_view kept =
            trimmed(text, sign_at(tag + 2), /*strips_indent=*/kind != '{', begins_line);
        if (!kept.empty()) add(TokenKind::kData, std::string(kept));
        skip(text.size());
        if (kind == '#') return read_comment();
        if (kind == '%') {
            if (const std::size_t len = raw_tag_len("raw"); len != 0) return read_raw(len);
        }
        add(kind == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, "");
        skip(sign_at(pos_ + 2) != '\0' ? 3 : 2);
        return read_tag(kind == '{' ? "}}" : "%}");
    }

    Result<> read_comment() {
        const int begin_line = line_;
        const std::size_t end = source_.find("#}", pos_ + 2);
        if (end == std::string::npos) {
            return make_error(
                ErrorCode::kInvalidArgument, "line {}: a comment {{# without its #}}", begin_line
            );
        }
        const char sign = end > pos_ + 2 ? source_[end - 1] : '\0';
        skip(end + 2 - pos_);
        if (sign == '-') {
            skip_white_space();
        } else if (sign != '+' && at("\n")) {
            skip(1);
        }
        return Ok{};
    }

    Result<> read_raw(std::size_t tag_len) {
        const int begin_line = line_;
        skip(tag_len);
        const bool begins_line = is_line_start_;
        const std::size_t begin = pos_;
        for (std::size_t tag = begin;; ++tag) {
            tag = source_.find("{%", tag);
            if (tag == std::string::npos) {
                return make_error(
                    ErrorCode::kInvalidArgument, "line {}: raw without its endraw", begin_line
                );
            }
            pos_ = tag;
            const std::size_t end_len = raw_tag_len("endraw");
            pos_ = begin;
            if (end_len == 0) continue;
            const std::string_view text = std::string_view(source_).substr(begin, tag - begin);
            const std::string_view kept =
                trimmed(text, sign_at(tag + 2), /*strips_indent=*/true, begins_line);
            if (!kept.empty()) add(TokenKind::kData, std::string(kept));
            skip(tag - begin + end_len);
            return Ok{};
        }
    }

    // Reads the content between {{ and }}, or {% and %}, and the closing delimiter.
    Result<> read_tag(std::string_view end) {
        const int begin_line = line_;
        std::vector<char> open;  // brackets that are open
        for (;;) {
            if (open.empty() && try_end(end)) return Ok{};
            if (pos_ >= source_.size()) {
                return make_error(
                    ErrorCode::kInvalidArgument,
                    "line {}: a tag {} without its {}",
                    begin_line,
                    end == "}}" ? "{{" : "{%",
                    end
                );
            }
            if (strip(rest().substr(0, text::utf8_len(source_[pos_])), StripSide::kLeft).empty()) {
                skip_white_space();
            } else if (is_digit(source_[pos_])) {
                RETURN_IF_ERROR(read_number());
            } else if (is_name_start(source_[pos_])) {
                std::size_t len = 1;
                while (pos_ + len < source_.size() && is_name_part(source_[pos_ + len])) ++len;
                add(TokenKind::kName, source_.substr(pos_, len));
                skip(len);
            } else if (source_[pos_] == '"' || source_[pos_] == '\'') {
                RETURN_IF_ERROR(read_string());
            } else {
                RETURN_IF_ERROR(read_operator(open));
            }
        }
    }

    bool try_end(std::string_view end) {
        const bool is_block = end == "%}";
        const char sign = at("-") ? '-' : at("+") && is_block ? '+' : '\0';
        const std::size_t sign_len = sign == '\0' ? 0 : 1;
        if (!rest().substr(sign_len).starts_with(end)) return false;
        add(is_block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, "");
        skip(sign_len + end.size());
        if (sign == '-') {
            const bool was_line_start = is_line_start_;
            skip_white_space();
            if (pos_ == 0) is_line_start_ = was_line_start;
        } else if (is_block && sign == '\0' && at("\n")) {
            skip(1);
        }
        return true;
    }

    Result<> read_operator(std::vector<char>& open) {
        const auto* const found =
            std::ranges::find_if(kOperators, [&](std::string_view text) { return at(text); });
        if (found == kOperators.end()) {
            return error(
                "unexpected character '{}'", rest().substr(0, text::utf8_len(source_[pos_]))
            );
        }
        const char c = found->front();
        if (found->size() == 1) {
            if (c == '(') open.push_back(')');
            if (c == '[') open.push_back(']');
            if (c == '{') open.push_back('}');
            if (c == ')' || c == ']' || c == '}') {
                if (open.empty() || open.back() != c) return error("unexpected '{}'", c);
                open.pop_back();
            }
        }
        add(TokenKind::kOperator, std::string(*found));
        skip(found->size());
        return Ok{};
    }

    // Reads digits of a base, with '_' allowed between two of them, from `i` on; moves
    // `i` past them.
    template <class IsDigit>
    std::string digits_at(std::size_t& i, IsDigit is_a_digit) const {
        std::string digits;
        while (i < source_.size()) {
            const bool is_joint =
                source_[i] == '_' && i + 1 < source_.size() && is_a_digit(source_[i + 1]);
            if (is_joint) ++i;
            if (!is_a_digit(source_[i])) break;
            digits += source_[i++];
        }
        return digits;
    }

    Result<> read_number() {
        const auto is_plain_digit = [](char c) { return is_digit(c); };
        std::size_t i = pos_;
        std::string digits = digits_at(i, is_plain_digit);
        int base = 10;
        bool is_real = false;
        if (digits == "0" && i < source_.size()) {
            const char mark = static_cast<char>(source_[i] | 0x20);
            base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
            if (base != 10) {
                ++i;
                digits = digits_at(i, [base](char c) {
                    const int digit = is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10;
                    return digit >= 0 && digit < base && (is_digit(c) || base == 16);
                });
            }
        }
        if (base == 10) {
            std::size_t next = i;
            const bool follows_dot = pos_ > 0 && source_[pos_ - 1] == '.';
            if (!follows_dot && next + 1 < source_.size() && source_[next] == '.' &&
                is_digit(source_[next + 1])) {
                ++next;
                digits += '.' + digits_at(next, is_plain_digit);
                i = next;
                is_real = true;
            }
            std::size_t exponent = i;
            if (!follows_dot && exponent < source_.size() && (source_[exponent] | 0x20) == 'e') {
                ++exponent;
                std::string sign;
                if (exponent < source_.size() && sign_at(exponent) != '\0')
                    sign = source_[exponent++];
                const std::string power = digits_at(exponent, is_plain_digit);
                if (!power.empty()) {
                    digits += 'e' + (sign == "+" ? "" : sign) + power;
                    i = exponent;
                    is_real = true;
                }
            }
        }
        ASSIGN_OR_RETURN(Value number, number_of(digits, base, is_real));
        add(TokenKind::kNumber, source_.substr(pos_, i - pos_));
        tokens_.back().number = std::move(number);
        skip(i - pos_);
        return Ok{};
    }

    [[nodiscard]] Result<Value> number_of(const std::string& digits, int base, bool is_real) const {
        const char* const end = digits.data() + digits.size();
        if (is_real) {
            double real = 0;
            const auto read = std::from_chars(digits.data(), end, real);
            if (read.ec != std::errc{}) return error("the number {} is out of range", digits);
            return Value::real(real);
        }
        if (base == 10 && digits.size() > 1 && digits.front() == '0' &&
            digits.find_first_not_of('0') != std::string::npos) {
            return error("the number {} begins with a zero", digits);
        }
        std::int64_t integer = 0;
        const auto read = std::from_chars(digits.data(), end, integer, base);
        if (read.ec != std::errc{} || read.ptr != end) {
            return error("the integer {} is beyond 64 bits", digits);
        }
        return Value::integer(integer);
    }

    Result<> read_string() {
        const char quote = source_[pos_];
        std::size_t end = pos_ + 1;
        while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2U : 1U;
        if (end >= source_.size()) return error("a string without its closing quote");
        std::string text;
        RETURN_IF_ERROR(unescape(std::string_view(source_).substr(pos_ + 1, end - pos_ - 1), text));
        add(TokenKind::kString, std::move(text));
        skip(end + 1 - pos_);
        return Ok{};
    }

    // Resolves escapes like Python's unicode-escape.
    Result<> unescape(std::string_view text, std::string& out) const {
        for (std::size_t i = 0; i < text.size(); ++i) {
            if (text[i] != '\\') {
                out += text[i];
                continue;
            }
            // a backslash cannot be last: it would have escaped the quote
            const char c = text[++i];
            static constexpr std::string_view kFrom = "nrtabfv\\'\"";
            static constexpr std::string_view kTo = "\n\r\t\a\b\f\v\\'\"";
            if (const std::size_t known = kFrom.find(c); known != std::string_view::npos) {
                out += kTo[known];
            } else if (c == '\n') {
                // a line continuation
            } else if (c >= '0' && c <= '7') {
                std::size_t len = 1;
                while (len < 3 && i + len < text.size() && text[i + len] >= '0' &&
                       text[i + len] <= '7') {
                    ++len;
                }
                RETURN_IF_ERROR(append_code(text.substr(i, len), 8, out));
                i += len - 1;
            } else if (c == 'x' || c == 'u' || c == 'U') {
                const std::size_t len = c == 'x' ? 2 : c == 'u' ? 4 : 8;
                if (i + len >= text.size()) return error("a truncated \\{} escape", c);
                RETURN_IF_ERROR(append_code(text.substr(i + 1, len), 16, out));
                i += len;
            } else if (c == 'N') {
                return error("characters by name (\\N) are not supported");
            } else {
                out += '\\';  // not an escape: kept, with its backslash
                --i;
                const std::size_t len = text::utf8_len(text[i + 1]);
                out += text.substr(i + 1, len);
                i += len;
            }
        }
        return Ok{};
    }

    Result<> append_code(std::string_view digits, int base, std::string& out) const {
        std::uint32_t code = 0;
        const char* const end = digits.data() + digits.size();
        const auto read = std::from_chars(digits.data(), end, code, base);
        if (read.ec != std::errc{} || read.ptr != end || code > text::kCodePointMax ||
            (code >= 0xd800 && code < 0xe000)) {
            return error("'{}' is not a code point", digits);
        }
        text::append_utf8(code, out);
        return Ok{};
    }

    std::string source_;
    std::size_t pos_ = 0;
    int line_ = 1;
    bool is_line_start_ = true;  // the previous token ended a line
    std::vector<Token> tokens_{};
};

}  // namespace

std::string describe(const Token& token) {
    switch (token.kind) {
        case TokenKind::kData:
            return "text";
        case TokenKind::kVariableBegin:
            return "{{";
        case TokenKind::kVariableEnd:
            return "}}";
        case TokenKind::kBlockBegin:
            return "{%";
        case TokenKind::kBlockEnd:
            return "%}";
        case TokenKind::kString:
            return "a string";
        case TokenKind::kEnd:
            return "the end of the template";
        case TokenKind::kName:
        case TokenKind::kNumber:
        case TokenKind::kOperator:
            return "'" + token.text + "'";
    }
    return {};
}

Result<std::vector<Token>> tokenize(std::string_view source) {
    return Lexer(with_plain_line_ends(source)).run();
}

}  // namespace pitstop::jinja
