// The syntax tree of a regular expression in a tokenizer.json.
//
// The dialect is Oniguruma's Ruby syntax over Unicode, which the reference uses for its patterns.
// Some differences from PCRE matter for tokenizers: in classes, [a[bc]] nests and && intersects; ^
// and $ match at lines; (?m) lets . match a newline; \h is a hexadecimal digit; \s, \w and \p
// follow Unicode 16; {n,m}+ repeats a repeat; (?i:s) matches U+017F. In the tree, classes are sets
// of code points, so that the engines need not agree on the meaning of a class.
//
// Source: Oniguruma 6.9.10, doc/RE and doc/SYNTAX.md.
#pragma once

#include "base/result.h"
#include "text/unicode.h"

#include <optional>
#include <string_view>
#include <variant>
#include <vector>

namespace pitstop::text::regex {

struct Node;

struct OneOf {  // matches one code point of the set
    CodePointSet set{};
};
struct Concat {  // without parts, matches the empty text
    std::vector<Node> parts;
};
struct Alternate {  // matches the first alternative that leads to a match
    std::vector<Node> branches;
};
enum class Greed { kGreedy, kLazy, kPossessive };
struct Repeat {
    std::vector<Node> body;  // one node; a vector because Node is incomplete here
    int min = 0;
    std::optional<int> max{};  // absent: unbounded
    Greed greed = Greed::kGreedy;
};
struct Atomic {  // (?>body): tries no other way once it has matched
    std::vector<Node> body;
};
enum class Direction { kAhead, kBehind };
struct Look {
    std::vector<Node> body;
    Direction direction = Direction::kAhead;
    bool negated = false;
};
enum class Position { kTextBegin, kTextEnd, kTextEndOrLastNewline, kLineBegin, kLineEnd };
struct At {
    Position position = Position::kTextBegin;
};

struct Node {
    std::variant<OneOf, Concat, Alternate, Repeat, Atomic, Look, At> kind{};
};

inline constexpr std::size_t kPatternBytesMax = 16384;
inline constexpr int kNestingMax = 50;
inline constexpr int kRepeatMax = 1000;  // the largest number in {n,m}

// Errors: kUnsupported and kMalformed, which name the byte and the construct.
Result<Node> parse(std::string_view pattern);

}  // namespace pitstop::text::regex
