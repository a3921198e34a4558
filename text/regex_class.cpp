#include "text/regex_class.h"

#include "text/regex_syntax.h"

#include <utility>
#include <vector>

namespace pitstop::text::regex {

Result<> ClassParser::begin_nested() {
    if (++nesting_ > kNestingMax) return unsupported("nesting this deep");
    return Ok{};
}

// Adds the other case of ASCII letters. No known pattern needs other letters, and a full table
// would have to agree with the reference's.
Result<CodePointSet> ClassParser::fold(const CodePointSet& set) const {
    const CodePointSet ascii({{0, 0x7f}});
    if (set.intersect(ascii) != set) return unsupported("(?i) over characters beyond ASCII");
    std::vector<CodePointRange> more(set.ranges().begin(), set.ranges().end());
    for (char32_t c = 'a'; c <= 'z'; ++c) {
        const char32_t upper = c - 32;
        if (!set.contains(c) && !set.contains(upper)) continue;
        more.push_back({c, c});
        more.push_back({upper, upper});
        if (c == 's') more.push_back({0x17f, 0x17f});    // LATIN SMALL LETTER LONG S
        if (c == 'k') more.push_back({0x212a, 0x212a});  // KELVIN SIGN
    }
    return CodePointSet(std::move(more));
}

Result<char32_t> ClassParser::parse_number(
    int base, std::size_t digits_min, std::size_t digits_max
) {
    char32_t value = 0;
    std::size_t digits = 0;
    for (; digits < digits_max; ++digits) {
        const char c = peek();
        int digit = 99;
        if (c >= '0' && c <= '9') digit = c - '0';
        if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
        if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
        if (digit >= base) break;
        value = value * static_cast<char32_t>(base) + static_cast<char32_t>(digit);
        ++pos_;
    }
    if (digits < digits_min) return malformed("a code point without its digits");
    if (value > kCodePointMax || (value >= 0xd800 && value <= 0xdfff)) {
        return malformed("a code point out of range");
    }
    return value;
}

Result<char32_t> ClassParser::parse_character_escape() {
    pos_ += 1;  // backslash
    if (at_end()) return malformed("a '\\' with nothing after it");
    const char c = peek();
    if (static_cast<unsigned char>(c) >= 0x80) return take_code_point();
    pos_ += 1;
    switch (c) {
        case 'n':
            return U'\n';
        case 't':
            return U'\t';
        case 'r':
            return U'\r';
        case 'f':
            return U'\f';
        case 'v':
            return U'\v';
        case 'a':
            return U'\a';
        case 'e':
            return char32_t{0x1b};
        case 'u':
            return parse_number(16, 4, 4);
        case '0':
            return parse_number(8, 0, 2);
        case 'x': {
            if (!take("{")) {
                ASSIGN_OR_RETURN(const char32_t byte, parse_number(16, 1, 2));
                if (byte >= 0x80)
                    return unsupported("\\x with a byte that is not an ASCII character");
                return byte;
            }
            ASSIGN_OR_RETURN(const char32_t value, parse_number(16, 1, 6));
            if (!take("}")) return malformed("\\x{ without its '}'");
            return value;
        }
        default:
            break;
    }
    const bool is_letter_or_digit =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (is_letter_or_digit) {
        pos_ -= 2;
        return unsupported(fmt::format("the escape \\{}", c));
    }
    return static_cast<char32_t>(c);
}

Result<std::optional<CodePointSet>> ClassParser::parse_class_escape() {
    using Found = std::optional<CodePointSet>;
    const CodePointSet digits = *find_property("nd");
    const CodePointSet hexadecimal({{'0', '9'}, {'a', 'f'}, {'A', 'F'}});
    if (take("\\d")) return Found(digits);
    if (take("\\D")) return Found(digits.complement());
    if (take("\\s")) return Found(white_space_set());
    if (take("\\S")) return Found(white_space_set().complement());
    if (take("\\w")) return Found(oniguruma_word_set());
    if (take("\\W")) return Found(oniguruma_word_set().complement());
    if (take("\\h")) return Found(hexadecimal);
    if (take("\\H")) return Found(hexadecimal.complement());
    if (peek() == '\\' && (peek(1) == 'p' || peek(1) == 'P') && peek(2) == '{') {
        ASSIGN_OR_RETURN(CodePointSet set, parse_property());
        return Found(std::move(set));
    }
    return Found();
}

Result<CodePointSet> ClassParser::parse_property() {
    bool negated = peek(1) == 'P';
    const std::size_t begin = pos_ + 3;
    const std::size_t close = pattern_.find('}', begin);
    if (close == pattern_.npos) return malformed("\\p{ without its '}'");
    std::string_view name = pattern_.substr(begin, close - begin);
    if (name.starts_with("^")) {
        negated = !negated;
        name.remove_prefix(1);
    }
    std::optional<CodePointSet> set = find_property(name);
    if (!set) return unsupported(fmt::format("the property \\p{{{}}}", name));
    pos_ = close + 1;
    return negated ? set->complement() : *std::move(set);
}

Result<CodePointSet> ClassParser::parse_posix(Options options) {
    pos_ += 2;  // "[:"
    const bool negated = take("^");
    const std::size_t close = pattern_.find(":]", pos_);
    if (close == pattern_.npos) return malformed("[: without its :]");
    const std::string_view name = pattern_.substr(pos_, close - pos_);
    CodePointSet set;
    if (name == "alpha") {
        set = *find_property("alphabetic");
    } else if (name == "digit") {
        set = *find_property("nd");
    } else if (name == "alnum") {
        set = find_property("alphabetic")->unite(*find_property("nd"));
    } else if (name == "upper" || name == "lower") {
        return unsupported("[:upper:] and [:lower:]");
    } else if (name == "punct") {
        set = oniguruma_punct_set();
    } else if (name == "space") {
        set = white_space_set();
    } else if (name == "blank") {
        set = find_property("zs")->unite(CodePointSet(U'\t'));
    } else if (name == "cntrl") {
        set = *find_property("cc");
    } else if (name == "xdigit") {
        set = CodePointSet({{'0', '9'}, {'a', 'f'}, {'A', 'F'}});
    } else if (name == "word") {
        set = oniguruma_word_set();
    } else if (name == "ascii" && !options.ignore_case) {
        set = *find_property("ascii");
    } else {
        return unsupported(fmt::format("the class [:{}:]", name));
    }
    pos_ = close + 2;
    return negated ? set.complement() : set;
}

Result<char32_t> ClassParser::parse_character() {
    if (peek() != '\\') return take_code_point();
    if (peek(1) == 'b') return unsupported("\\b in a class");
    return parse_character_escape();
}

// Parses one character, or two with a '-' between them.
Result<CodePointRange> ClassParser::parse_range() {
    ASSIGN_OR_RETURN(const char32_t first, parse_character());
    if (peek() != '-' || peek(1) == ']' || pos_ + 1 >= pattern_.size()) {
        return CodePointRange{first, first};
    }
    pos_ += 1;
    if (peek() == '[' || pattern_.substr(pos_).starts_with("&&")) {
        return unsupported("a '-' before a nested class or '&&'");
    }
    if (peek() == '\\') {
        ASSIGN_OR_RETURN(const std::optional<CodePointSet> escaped, parse_class_escape());
        if (escaped) return malformed("a range that ends with a class");
    }
    ASSIGN_OR_RETURN(const char32_t last, parse_character());
    if (last < first) return malformed("a range that ends before it begins");
    return CodePointRange{first, last};
}

// Parses a class, from its '[' on. Unites its ranges and nested classes; && intersects two sides.
Result<CodePointSet> ClassParser::parse_class(Options options) {
    RETURN_IF_ERROR(begin_nested());
    pos_ += 1;
    const bool negated = take("^");
    std::optional<CodePointSet> left_of_and;
    CodePointSet set;
    CodePointSet folding;  // the single characters and ranges, to which case folding applies
    const auto settle = [&]() -> Result<CodePointSet> {
        if (!options.ignore_case) return set.unite(folding);
        ASSIGN_OR_RETURN(const CodePointSet folded, fold(folding));
        return set.unite(folded);
    };
    bool is_first = true;
    for (;; is_first = false) {
        if (at_end()) return malformed("a '[' without its ']'");
        if (peek() == ']') {
            if (!is_first) break;
            if (pattern_.find(']', pos_ + 1) == pattern_.npos) return malformed("an empty class");
        }
        if (take("&&")) {
            ASSIGN_OR_RETURN(const CodePointSet right, settle());
            left_of_and = left_of_and ? left_of_and->intersect(right) : right;
            set = CodePointSet();
            folding = CodePointSet();
            continue;
        }
        if (peek() == '[') {
            const bool is_posix = peek(1) == ':' && pattern_.find(":]", pos_) != pattern_.npos;
            Result<CodePointSet> nested = is_posix ? parse_posix(options) : parse_class(options);
            if (!nested) return nested;
            set = set.unite(*nested);
            continue;
        }
        if (peek() == '\\') {
            const std::size_t before = pos_;
            ASSIGN_OR_RETURN(const std::optional<CodePointSet> escaped, parse_class_escape());
            if (escaped) {
                if (peek() == '-' && peek(1) != ']')
                    return unsupported("a range that begins with a class");
                if (options.ignore_case && pattern_.substr(before, 2) != "\\s" &&
                    pattern_.substr(before, 2) != "\\d") {
                    return unsupported("(?i) over this class");
                }
                set = set.unite(*escaped);
                continue;
            }
        }
        ASSIGN_OR_RETURN(const CodePointRange range, parse_range());
        folding = folding.unite(CodePointSet({range}));
    }
    pos_ += 1;  // "]"
    end_nested();
    ASSIGN_OR_RETURN(CodePointSet result, settle());
    if (left_of_and) result = left_of_and->intersect(result);
    return negated ? result.complement() : result;
}

}  // namespace pitstop::text::regex
