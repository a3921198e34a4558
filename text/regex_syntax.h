// The syntax tree of a regular expression of tokenizer.json.
//
// The dialect is Oniguruma's Ruby syntax over Unicode, which the reference uses for its patterns.
// The differences from PCRE that matter for tokenizers: [a[bc]] nests and && intersects; ^ and $
// are about lines; (?m) lets . match a newline; \h is a hexadecimal digit; \s, \w and \p know
// Unicode 16; {n,m}+ repeats a repeat; (?i:s) matches U+017F. Classes become sets of code points
// here, so that no engine's own definition matters.
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

struct OneOf {  // one code point of the set
    CodePointSet set{};
};
struct Concat {  // empty: matches the empty text
    std::vector<Node> parts;
};
struct Alternate {  // the first alternative that leads to a match wins
    std::vector<Node> branches;
};
enum class Greed { kGreedy, kLazy, kPossessive };
struct Repeat {
    std::vector<Node> body;  // one node; a vector because Node is incomplete here
    int min = 0;
    std::optional<int> max{};  // absent: unbounded
    Greed greed = Greed::kGreedy;
};
struct Atomic {  // (?>body): never tried again once it has matched
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

// The error, kUnsupported or kMalformed, names the byte and the construct.
Result<Node> parse(std::string_view pattern);

}  // namespace pitstop::text::regex
