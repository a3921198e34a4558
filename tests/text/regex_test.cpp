#include "text/regex.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace pitstop::text {
namespace {

std::vector<TextSpan> all_matches(const Regex& regex, std::string_view text) {
    std::vector<TextSpan> matches;
    Regex::Search search(regex, text);
    for (;;) {
        const auto match = search.next();
        EXPECT_TRUE(match) << match.error().message;
        if (!match || !*match) return matches;
        matches.push_back(**match);
    }
}

// Returns the matches, joined by '|'.
std::string matched(std::string_view pattern, std::string_view text) {
    const auto regex = Regex::compile(pattern);
    EXPECT_TRUE(regex) << regex.error().message;
    if (!regex) return "error";
    std::string joined;
    for (const TextSpan& span : all_matches(*regex, text)) {
        joined += text.substr(span.begin, span.end - span.begin);
        joined += '|';
    }
    return joined;
}

const std::vector<std::string> kKnownPatterns = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    "[!\"#$%&'()*+,\\-./"
    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
    "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    R"( ?[^(\s|[.,!?…。，、।۔،])]+)",
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}|\s+)",
    R"([0-9][0-9][0-9])",
    R"(\p{N}{1,3}|a{2,5}?b|(?:ab|a)*c?|x++$)",
};

TEST(Regex, KnownPatternsNeedNoBacktracking) {
    for (const std::string& pattern : kKnownPatterns) {
        const auto regex = Regex::compile(pattern);
        ASSERT_TRUE(regex) << regex.error().message;
        EXPECT_NE(regex->dfa(), nullptr) << pattern;
    }
}

TEST(Regex, TheTwoEnginesAgree) {
    const std::vector<std::string> atoms = {
        "a",  "b",      "ab",         "B",          "x",      "'s",     "'LL",    "'",
        "1",  "23",     " ",          "  ",         "\n",     "\r\n",   "\t",     ".",
        "!?", "(",      "|",          "é",          "É",      "中",     "文",     "ア",
        "한", "😀",      "\u0301",     "\u00a0",     "\u3000", "\u2028", "\u017f", "\u212a",
        "²",  "\u180e", "\U0001fae8", "\U000105c0", "ǅ",      "ʰ",      "_",      "…",
    };
    std::mt19937 random(7);
    for (const std::string& pattern : kKnownPatterns) {
        const auto best = Regex::compile(pattern);
        const auto pcre2 = Regex::compile(pattern, Regex::Engine::kPcre2);
        ASSERT_TRUE(best && pcre2);
        ASSERT_EQ(pcre2->dfa(), nullptr);
        for (int round = 0; round < 300; ++round) {
            std::string text;
            for (std::size_t n = random() % 30; n > 0; --n) text += atoms[random() % atoms.size()];
            ASSERT_EQ(all_matches(*best, text), all_matches(*pcre2, text)) << pattern << "\n"
                                                                           << text;
        }
    }
}

// Expected: the results of Oniguruma 6.9.10. PCRE2 reads many of these patterns differently.
TEST(Regex, ReadsOnigurumasDialect) {
    EXPECT_EQ(matched(R"(\h)", "g1F\t"), "1|F|");      // a hexadecimal digit
    EXPECT_EQ(matched("[a[bc]]+", "a[bc]"), "a|bc|");  // classes nest
    EXPECT_EQ(matched("[a-c&&b-z]", "abcd"), "b|c|");  // and intersect
    EXPECT_EQ(matched("a$", "a\nb a"), "a|a|");        // lines
    EXPECT_EQ(matched("^b", "a\nb"), "b|");
    EXPECT_EQ(matched("a{,2}", "aaa"), "aa|a|");
    EXPECT_EQ(matched("a{1,2}+", "aaaa"), "aaaa|");  // not possessive: repeated
    EXPECT_EQ(matched("(?m:.)", "\n"), "\n|");
    EXPECT_EQ(matched(".", "\n"), "");
    EXPECT_EQ(matched("(?i:s)", "S\u017f"), "S|\u017f|");
    EXPECT_EQ(matched(R"(\s)", "\u180e\u200b\u0085"), "\u0085|");
    EXPECT_EQ(matched(R"(\w+)", "a²b_\u0301-"), "a²b_\u0301|");
    EXPECT_EQ(matched(R"(\p{L}+)", "\U000105c0a"), "\U000105c0a|");  // Unicode 16
    EXPECT_EQ(matched(R"(\p{^L})", "a1"), "1|");
    EXPECT_EQ(matched("a(?i)b|c", "aB C"), "aB|");  // a(?:(?i)b|c)
    EXPECT_EQ(matched("a{x}", "a{x}"), "a{x}|");
    EXPECT_EQ(matched(R"(\p{L}++a|.)", "ba"), "b|a|");  // possessive
    EXPECT_EQ(matched("(?<=a)b|(?<!a)c", "abcac"), "b|c|");
    EXPECT_EQ(matched("(?>a+)ab|a", "aab"), "a|a|");
}

TEST(Regex, EmptyMatchesDoNotFollowOnAMatch) {
    const auto regex = Regex::compile("x*");
    ASSERT_TRUE(regex);
    EXPECT_TRUE(regex->may_match_empty());
    const std::vector<TextSpan> expected = {{0, 0}, {1, 3}, {4, 4}};
    EXPECT_EQ(all_matches(*regex, "axxb"), expected);
    EXPECT_EQ(all_matches(*regex, ""), (std::vector<TextSpan>{{0, 0}}));
}

TEST(Regex, UnknownSyntaxIsAnErrorThatSaysWhere) {
    for (const char* pattern :
         {"(a",
          "a)",
          "[a",
          "*a",
          "\\",
          "\\p{L",
          "\\p{Klingon}",
          "(?s:.)",
          "\\1",
          "\\k<a>",
          "\\G",
          "\\K",
          "\\X",
          "(?~a)",
          "(?(1)a|b)",
          "[b-a]",
          "[a-\\d]",
          "\\x{110000}",
          "\\x{d800}",
          "a{5000}",
          "(?i:é)",
          "(?i:ss)",
          "(?i:[[:ascii:]])",
          "[[:upper:]]",
          "\\pL",
          "(?x) a",
          "(?=",
          "(?<n",
          "\\u12"}) {
        const auto regex = Regex::compile(pattern);
        ASSERT_FALSE(regex) << pattern;
        EXPECT_NE(regex.error().message.find("byte"), std::string::npos) << regex.error().message;
    }
    std::string deep(1000, '(');
    EXPECT_FALSE(Regex::compile(deep));
    EXPECT_FALSE(Regex::compile(std::string(regex::kPatternBytesMax + 1, 'a')));
    EXPECT_FALSE(Regex::compile("\xff"));
}

TEST(Regex, RandomPatternsNeverCrash) {
    const std::string_view pieces[] = {
        "a",    "b",   "(", ")",     "[", "]",  "^",       "-",        "&&",   "|",
        "*",    "+",   "?", "{2,3}", "{", "\\", "\\p{L}",  "\\s",      "(?i:", "(?!",
        "(?<=", "(?>", ".", "$",     "é", "s",  "\\x{41}", "[:alpha:]"};
    std::mt19937 random(3);
    int num_compiled = 0;
    for (int round = 0; round < 5000; ++round) {
        std::string pattern;
        for (std::size_t n = random() % 10; n > 0; --n)
            pattern += pieces[random() % std::size(pieces)];
        const auto regex = Regex::compile(pattern);
        if (!regex) continue;
        ++num_compiled;
        Regex::Search search(*regex, "aab (sS)\né[x]-");
        for (auto match = search.next(); match && *match; match = search.next()) {
        }
    }
    EXPECT_GT(num_compiled, 500);
}

// A pattern that would backtrack 2^n times ends in an error, or matches without backtracking.
TEST(Regex, NoPatternRunsForEver) {
    const auto regular = Regex::compile("(?:a|a)*b");
    ASSERT_TRUE(regular);
    EXPECT_TRUE(all_matches(*regular, std::string(2000, 'a')).empty());
    const auto hard = Regex::compile("(?:(?:a|a)*(?<=c))*b");
    ASSERT_TRUE(hard);
    const std::string text(200, 'a');
    Regex::Search search(*hard, text);
    const auto match = search.next();
    EXPECT_TRUE(match || match.error().code == ErrorCode::kResourceExhausted);
}

// Expanded, these patterns would be a trillion empty matches.
TEST(Regex, RepeatsOfNothingAreNotWrittenOut) {
    const auto nothing = Regex::compile("a(){1000}{1000}{1000}{1000}");
    ASSERT_TRUE(nothing);
    EXPECT_EQ(all_matches(*nothing, "aa").size(), 2u);
}

}  // namespace
}  // namespace pitstop::text
