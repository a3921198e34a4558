#include "text/regex_syntax.h"

#include <array>
#include <string>
#include <utility>

namespace pitstop::text::regex {
namespace {

using enum ErrorCode;

Node one_of(CodePointSet set) { return {OneOf{std::move(set)}}; }

Node look(Direction direction, bool negated, Node body) {
    Look node{.body = {}, .direction = direction, .negated = negated};
    node.body.push_back(std::move(body));
    return {std::move(node)};
}

Node repeat(Node body, int min, std::optional<int> max, Greed greed) {
    Repeat node{.body = {}, .min = min, .max = max, .greed = greed};
    node.body.push_back(std::move(body));
    return {std::move(node)};
}

// \b and \B: a word on exactly one side, or on both or neither.
Node word_boundary(bool negated) {
    const auto side = [](Direction direction, bool absent) {
        return look(direction, absent, one_of(oniguruma_word_set()));
    };
    const auto pair = [&](bool behind_absent, bool ahead_absent) {
        Concat both;
        both.parts.push_back(side(Direction::kBehind, behind_absent));
        both.parts.push_back(side(Direction::kAhead, ahead_absent));
        return Node{std::move(both)};
    };
    Alternate either;
    either.branches.push_back(pair(false, !negated));
    either.branches.push_back(pair(true, negated));
    return {std::move(either)};
}

CodePointSet newline() { return CodePointSet(U'\n'); }

// \R: a carriage return and newline together, or any one vertical space.
Node general_newline() {
    Concat pair;
    pair.parts.push_back(one_of(CodePointSet(U'\r')));
    pair.parts.push_back(one_of(newline()));
    Alternate either;
    either.branches.push_back({std::move(pair)});
    either.branches.push_back(one_of(CodePointSet({{0xa, 0xd}, {0x85, 0x85}, {0x2028, 0x2029}})));
    Atomic atomic;
    atomic.body.push_back({std::move(either)});
    return {std::move(atomic)};
}

struct Options {
    bool ignore_case = false;
    bool dot_matches_newline = false;
};

class Parser {
  public:
    explicit Parser(std::string_view pattern) : pattern_(pattern) {}

    Result<Node> parse_all() {
        ASSIGN_OR_RETURN(Node node, parse_alternate(Options{}));
        if (!at_end()) return malformed("a ')' without its '('");
        return node;
    }

  private:
    // Text.
    [[nodiscard]] bool at_end() const { return pos_ == pattern_.size(); }
    [[nodiscard]] char peek(std::size_t ahead = 0) const {
        return pos_ + ahead < pattern_.size() ? pattern_[pos_ + ahead] : '\0';
    }
    bool take(std::string_view text) {
        if (!pattern_.substr(pos_).starts_with(text)) return false;
        pos_ += text.size();
        return true;
    }
    char32_t take_code_point() { return next_code_point(pattern_, pos_); }

    [[nodiscard]] Error malformed(std::string_view what) const {
        return make_error(kMalformed, "{} at byte {} of the pattern '{}'", what, pos_, pattern_);
    }
    [[nodiscard]] Error unsupported(std::string_view what) const {
        return make_error(
            kUnsupported, "{} at byte {} of the pattern '{}' is not supported", what, pos_, pattern_
        );
    }

    // Groups and branches.
    Result<Node> parse_alternate(Options options);
    Result<Node> parse_concat(Options options);
    Result<Node> parse_atom(Options options);
    Result<Node> parse_group(Options options);
    Result<Node> parse_option_group(Options options);
    Result<Node> parse_quantifiers(Node body);
    Result<Node> parse_escape(Options options);
    Result<Node> literal(CodePointSet set, Options options);

    // Classes.
    Result<CodePointSet> parse_class(Options options);
    Result<CodePointSet> parse_posix(Options options);
    Result<CodePointSet> parse_property();
    Result<std::optional<CodePointSet>> parse_class_escape(
    );  // \d, \p{L}...; nothing where it is one character
    Result<char32_t> parse_character_escape();
    Result<char32_t> parse_number(int base, std::size_t digits_min, std::size_t digits_max);
    Result<CodePointSet> fold(CodePointSet set) const;

    std::string_view pattern_;
    std::size_t pos_ = 0;
    int nesting_ = 0;
    // The character before, where it was one letter under (?i): some pairs fold to one code point.
    char32_t folded_before_ = 0;
};

// Adds the other case. Only ASCII has one here: patterns in use fold nothing else, and the full
// table would be one more that must agree with the reference's.
Result<CodePointSet> Parser::fold(CodePointSet set) const {
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

Result<Node> Parser::literal(CodePointSet set, Options options) {
    if (!options.ignore_case) return one_of(std::move(set));
    // Code points whose full case folding is two ASCII letters: ss, ff, fi, fl, st.
    constexpr std::array<std::string_view, 5> kPairs = {"ss", "ff", "fi", "fl", "st"};
    char32_t now = set.ranges().size() == 1 ? set.ranges()[0].first : 0;
    if (now >= 'A' && now <= 'Z') now += 32;
    for (const std::string_view pair : kPairs) {
        if (folded_before_ == static_cast<char32_t>(pair[0]) &&
            now == static_cast<char32_t>(pair[1])) {
            return unsupported(
                "(?i) over a pair of letters that is one code point in the other case"
            );
        }
    }
    folded_before_ = now;
    ASSIGN_OR_RETURN(CodePointSet folded, fold(std::move(set)));
    return one_of(std::move(folded));
}

Result<Node> Parser::parse_alternate(Options options) {
    if (++nesting_ > kNestingMax) return unsupported("nesting this deep");
    Alternate node;
    do {
        folded_before_ = 0;
        ASSIGN_OR_RETURN(Node branch, parse_concat(options));
        node.branches.push_back(std::move(branch));
    } while (take("|"));
    folded_before_ = 0;
    --nesting_;
    if (node.branches.size() == 1) return std::move(node.branches[0]);
    return Node{std::move(node)};
}

Result<Node> Parser::parse_concat(Options options) {
    Concat node;
    while (!at_end() && peek() != '|' && peek() != ')') {
        const char32_t folded_before = folded_before_;
        folded_before_ = 0;
        if (peek() == '[' || peek() == '(') {
            // A class or group may begin with what folds together with the letter before it.
            if (folded_before == 's' || folded_before == 'f') {
                return unsupported("(?i) over 's' or 'f' before a class or group");
            }
        } else {
            folded_before_ = folded_before;
        }
        ASSIGN_OR_RETURN(Node atom, parse_atom(options));
        ASSIGN_OR_RETURN(Node repeated, parse_quantifiers(std::move(atom)));
        node.parts.push_back(std::move(repeated));
    }
    if (node.parts.size() == 1) return std::move(node.parts[0]);
    return Node{std::move(node)};
}

Result<Node> Parser::parse_atom(Options options) {
    if (peek() == '[') {
        ASSIGN_OR_RETURN(CodePointSet set, parse_class(options));
        return one_of(std::move(set));
    }
    if (peek() == '(') return parse_group(options);
    if (peek() == '\\') return parse_escape(options);
    if (peek() == '*' || peek() == '+' || peek() == '?')
        return malformed("a quantifier of nothing");
    if (take("^")) return Node{At{Position::kLineBegin}};
    if (take("$")) return Node{At{Position::kLineEnd}};
    if (take(".")) {
        return one_of(
            options.dot_matches_newline ? CodePointSet().complement() : newline().complement()
        );
    }
    return literal(CodePointSet(take_code_point()), options);
}

Result<Node> Parser::parse_group(Options options) {
    pos_ += 1;  // (
    Result<Node> body = Node{};
    if (take("?:")) {
        body = parse_alternate(options);
    } else if (take("?=")) {
        body = parse_alternate(options);
        if (body) body = look(Direction::kAhead, false, *std::move(body));
    } else if (take("?!")) {
        body = parse_alternate(options);
        if (body) body = look(Direction::kAhead, true, *std::move(body));
    } else if (take("?<=")) {
        body = parse_alternate(options);
        if (body) body = look(Direction::kBehind, false, *std::move(body));
    } else if (take("?<!")) {
        body = parse_alternate(options);
        if (body) body = look(Direction::kBehind, true, *std::move(body));
    } else if (take("?>")) {
        body = parse_alternate(options);
        if (body) {
            Atomic atomic;
            atomic.body.push_back(*std::move(body));
            body = Node{std::move(atomic)};
        }
    } else if (take("?<")) {  // a named group: the name does not matter, nothing refers to it
        while (!at_end() && peek() != '>') ++pos_;
        if (!take(">")) return malformed("a group's name without '>'");
        body = parse_alternate(options);
    } else if (peek() == '?') {
        return parse_option_group(options);
    } else {
        body = parse_alternate(options);
    }
    if (!body) return body;
    if (!take(")")) return malformed("a group without its ')'");
    return body;
}

// (?imx-imx) or (?imx-imx:...). Without a colon the options last to the end of the enclosing group,
// whose remaining branches become one alternation, as in Ruby.
Result<Node> Parser::parse_option_group(Options options) {
    pos_ += 1;  // ?
    bool on = true;
    while (peek() != ':' && peek() != ')') {
        if (take("-")) {
            on = false;
        } else if (take("i")) {
            options.ignore_case = on;
        } else if (take("m")) {
            options.dot_matches_newline = on;
        } else if (peek() == 'x' && !on) {
            pos_ += 1;  // extended syntax is never on
        } else {
            return unsupported("the group's kind or option");
        }
    }
    const bool has_body = take(":");
    if (!has_body) pos_ += 1;  // )
    ASSIGN_OR_RETURN(Node body, parse_alternate(options));
    if (has_body && !take(")")) return malformed("a group without its ')'");
    return body;
}

Result<Node> Parser::parse_quantifiers(Node body) {
    for (;;) {
        int min = 0;
        std::optional<int> max;
        bool is_interval = false;
        if (take("*")) {
        } else if (take("+")) {
            min = 1;
        } else if (take("?")) {
            max = 1;
        } else if (peek() == '{') {
            const std::size_t before = pos_;
            pos_ += 1;
            const auto number = [&]() -> std::optional<int> {
                int value = 0;
                const std::size_t first = pos_;
                while (peek() >= '0' && peek() <= '9' && value <= kRepeatMax) {
                    value = value * 10 + (peek() - '0');
                    ++pos_;
                }
                return pos_ == first ? std::nullopt : std::optional(value);
            };
            const std::optional<int> low = number();
            const bool has_comma = take(",");
            const std::optional<int> high = has_comma ? number() : low;
            if ((!low && !high) || !take("}")) {
                if (low.value_or(0) > kRepeatMax || high.value_or(0) > kRepeatMax) {
                    return unsupported("so large a number of repeats");
                }
                pos_ = before;  // not an interval: the next atom is a '{'
                return body;
            }
            is_interval = true;
            min = low.value_or(0);
            max = high;
            if (min > kRepeatMax || max.value_or(0) > kRepeatMax) {
                return unsupported("so large a number of repeats");
            }
            if (max && *max < min) return unsupported("{n,m} with n > m");
        } else {
            return body;
        }
        folded_before_ = 0;
        Greed greed = Greed::kGreedy;
        const bool is_fixed = is_interval && max == min;  // {n}? is an optional {n}, not a lazy one
        if (!is_fixed && take("?")) greed = Greed::kLazy;
        if (!is_interval && greed == Greed::kGreedy && take("+")) greed = Greed::kPossessive;
        body = repeat(std::move(body), min, max, greed);
    }
}

Result<Node> Parser::parse_escape(Options options) {
    const std::size_t before = pos_;
    pos_ += 1;  // backslash
    if (take("A")) return Node{At{Position::kTextBegin}};
    if (take("z")) return Node{At{Position::kTextEnd}};
    if (take("Z")) return Node{At{Position::kTextEndOrLastNewline}};
    if (take("b")) return word_boundary(false);
    if (take("B")) return word_boundary(true);
    if (take("R")) return general_newline();
    pos_ = before;
    ASSIGN_OR_RETURN(std::optional<CodePointSet> set, parse_class_escape());
    if (set) {
        if (!options.ignore_case) return one_of(*std::move(set));
        // Closed under case as they are: digits, spaces, words, letters, their complements.
        folded_before_ = 0;
        const std::string_view escape = pattern_.substr(before, pos_ - before);
        for (const std::string_view closed :
             {"\\d",
              "\\D",
              "\\s",
              "\\S",
              "\\w",
              "\\W",
              "\\h",
              "\\H",
              "\\p{L}",
              "\\p{N}",
              "\\P{L}",
              "\\P{N}"}) {
            if (escape == closed) return one_of(*std::move(set));
        }
        return unsupported("(?i) over this property");
    }
    ASSIGN_OR_RETURN(const char32_t character, parse_character_escape());
    return literal(CodePointSet(character), options);
}

Result<char32_t> Parser::parse_number(int base, std::size_t digits_min, std::size_t digits_max) {
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

Result<char32_t> Parser::parse_character_escape() {
    pos_ += 1;  // backslash
    if (at_end()) return malformed("a '\\' with nothing behind it");
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
                if (byte >= 0x80) return unsupported("\\x with a byte that is no ASCII character");
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

Result<std::optional<CodePointSet>> Parser::parse_class_escape() {
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

Result<CodePointSet> Parser::parse_property() {
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

Result<CodePointSet> Parser::parse_posix(Options options) {
    pos_ += 2;  // [:
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

// At the '['. Ranges, nested classes and escapes are united; && intersects what is on its two
// sides.
Result<CodePointSet> Parser::parse_class(Options options) {
    if (++nesting_ > kNestingMax) return unsupported("nesting this deep");
    pos_ += 1;
    const bool negated = take("^");
    std::optional<CodePointSet> left_of_and;
    CodePointSet set;
    CodePointSet folding;  // single characters and ranges, which have another case
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
        const auto character = [&]() -> Result<char32_t> {
            if (peek() != '\\') return take_code_point();
            if (peek(1) == 'b') return unsupported("\\b in a class");
            return parse_character_escape();
        };
        ASSIGN_OR_RETURN(const char32_t first, character());
        char32_t last = first;
        if (peek() == '-' && peek(1) != ']' && pos_ + 1 < pattern_.size()) {
            pos_ += 1;
            if (peek() == '[' || pattern_.substr(pos_).starts_with("&&")) {
                return unsupported("a '-' before a nested class or '&&'");
            }
            if (peek() == '\\') {
                ASSIGN_OR_RETURN(const std::optional<CodePointSet> escaped, parse_class_escape());
                if (escaped) return malformed("a range that ends with a class");
            }
            ASSIGN_OR_RETURN(last, character());
            if (last < first) return malformed("a range that ends before it begins");
        }
        folding = folding.unite(CodePointSet({{first, last}}));
    }
    pos_ += 1;  // ]
    --nesting_;
    ASSIGN_OR_RETURN(CodePointSet result, settle());
    if (left_of_and) result = left_of_and->intersect(result);
    return negated ? result.complement() : result;
}

}  // namespace

Result<Node> parse(std::string_view pattern) {
    if (pattern.size() > kPatternBytesMax) {
        return make_error(
            kTooLarge,
            "a pattern of {} bytes; at most {} are read",
            pattern.size(),
            kPatternBytesMax
        );
    }
    if (find_invalid_utf8(pattern)) return make_error(kMalformed, "a pattern that is not UTF-8");
    return Parser(pattern).parse_all();
}

}  // namespace pitstop::text::regex
