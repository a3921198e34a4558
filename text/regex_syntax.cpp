#include "text/regex_syntax.h"

#include "text/regex_class.h"

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

// Returns the node of \b or \B: a word is on exactly one side, or on both sides or neither.
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

// Returns the node of \R: a carriage return and a newline, or one vertical space.
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

// Parses a complete pattern. ClassParser parses its character classes.
class Parser : private ClassParser {
  public:
    explicit Parser(std::string_view pattern) : ClassParser(pattern) {}

    Result<Node> parse_all() {
        ASSIGN_OR_RETURN(Node node, parse_alternate(Options{}));
        if (!at_end()) return malformed("a ')' without its '('");
        return node;
    }

  private:
    Result<Node> parse_alternate(Options options);
    Result<Node> parse_concat(Options options);
    Result<Node> parse_atom(Options options);
    Result<Node> parse_group(Options options);
    Result<Node> parse_option_group(Options options);
    Result<Node> parse_quantifiers(Node body);
    Result<Node> parse_escape(Options options);
    Result<Node> literal(CodePointSet set, Options options);

    // The previous character, if it was one letter under (?i). Pairs may fold to one code point.
    char32_t folded_before_ = 0;
};

Result<Node> Parser::literal(CodePointSet set, Options options) {
    if (!options.ignore_case) return one_of(std::move(set));
    // The full case folding of some code points is two ASCII letters: ss, ff, fi, fl, st.
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
    ASSIGN_OR_RETURN(CodePointSet folded, fold(set));
    return one_of(std::move(folded));
}

Result<Node> Parser::parse_alternate(Options options) {
    RETURN_IF_ERROR(begin_nested());
    Alternate node;
    do {
        folded_before_ = 0;
        ASSIGN_OR_RETURN(Node branch, parse_concat(options));
        node.branches.push_back(std::move(branch));
    } while (take("|"));
    folded_before_ = 0;
    end_nested();
    if (node.branches.size() == 1) return std::move(node.branches[0]);
    return Node{std::move(node)};
}

Result<Node> Parser::parse_concat(Options options) {
    Concat node;
    while (!at_end() && peek() != '|' && peek() != ')') {
        const char32_t folded_before = folded_before_;
        folded_before_ = 0;
        if (peek() == '[' || peek() == '(') {
            // A class or group may begin with a letter that folds together with the previous one.
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
    skip();  // "("
    Result<Node> body = Node{};
    if (take("?=")) {
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
    } else if (take("?<")) {  // a named group: no part of a pattern refers to the name
        while (!at_end() && peek() != '>') skip();
        if (!take(">")) return malformed("a group's name without '>'");
        body = parse_alternate(options);
    } else if (peek() == '?' && !take("?:")) {
        return parse_option_group(options);
    } else {
        body = parse_alternate(options);
    }
    if (!body) return body;
    if (!take(")")) return malformed("a group without its ')'");
    return body;
}

// Parses (?imx-imx) or (?imx-imx:...). Without a colon, the options are valid to the end of the
// enclosing group, and its remaining branches become one alternation, as in Ruby.
Result<Node> Parser::parse_option_group(Options options) {
    skip();  // "?"
    bool on = true;
    while (peek() != ':' && peek() != ')') {
        if (take("-")) {
            on = false;
        } else if (take("i")) {
            options.ignore_case = on;
        } else if (take("m")) {
            options.dot_matches_newline = on;
        } else if (peek() == 'x' && !on) {
            skip();  // extended syntax is never enabled
        } else {
            return unsupported("the group's kind or option");
        }
    }
    const bool has_body = take(":");
    if (!has_body) skip();  // ")"
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
            const std::size_t before = position();
            skip();
            const auto number = [&]() -> std::optional<int> {
                int value = 0;
                const std::size_t first = position();
                while (peek() >= '0' && peek() <= '9' && value <= kRepeatMax) {
                    value = value * 10 + (peek() - '0');
                    skip();
                }
                return position() == first ? std::nullopt : std::optional(value);
            };
            const std::optional<int> low = number();
            const bool has_comma = take(",");
            const std::optional<int> high = has_comma ? number() : low;
            if ((!low && !high) || !take("}")) {
                if (low.value_or(0) > kRepeatMax || high.value_or(0) > kRepeatMax) {
                    return unsupported("so large a number of repeats");
                }
                go_back_to(before);  // not an interval: '{' is the next atom
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
    const std::size_t before = position();
    skip();  // the backslash
    if (take("A")) return Node{At{Position::kTextBegin}};
    if (take("z")) return Node{At{Position::kTextEnd}};
    if (take("Z")) return Node{At{Position::kTextEndOrLastNewline}};
    if (take("b")) return word_boundary(false);
    if (take("B")) return word_boundary(true);
    if (take("R")) return general_newline();
    go_back_to(before);
    ASSIGN_OR_RETURN(std::optional<CodePointSet> set, parse_class_escape());
    if (set) {
        if (!options.ignore_case) return one_of(*std::move(set));
        // Each of these sets (digits, spaces, words, letters, complements) is closed under case.
        folded_before_ = 0;
        const std::string_view escape = text_since(before);
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
