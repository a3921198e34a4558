// Defines the syntax tree of a regular expression of tokenizer.json.
//
// The dialect is Oniguruma's Ruby syntax over Unicode, because that is what the reference gives its
// patterns to. It differs from PCRE in what tokenizers use: [a[bc]] nests and && intersects; ^ and
// $ are about lines; (?m) lets . match a newline; \h is a hexadecimal digit; \s, \w and \p know
// Unicode 16; {n,m}+ repeats a repeat; (?i:s) matches U+017F. Classes are resolved here to sets of
// code points, so that no engine's own idea of them counts.
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
struct Concat {  // none: the empty match
    std::vector<Node> parts;
};
struct Alternate {  // the first that leads to a match wins
    std::vector<Node> branches;
};
enum class Greed { kGreedy, kLazy, kPossessive };
struct Repeat {
    std::vector<Node> body;  // one node; a vector because Node is not complete yet
    int min = 0;
    std::optional<int> max{};  // none: no bound
    Greed greed = Greed::kGreedy;
};
struct Atomic {  // (?>body): once left, never tried again
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

// An Error of kind kUnsupported or kMalformed names the place and what is there.
Result<Node> parse(std::string_view pattern);

}  // namespace pitstop::text::regex
