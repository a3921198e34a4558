// Tests what grammars of each kind allow, and how matchers follow an output.
#include "grammar/matcher.h"

#include "tests/grammar/small_vocabulary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::grammar {
namespace {

using messages::GrammarKind;

class GrammarTest : public testing::Test {
  protected:
    void SetUp() override {
        if (!why_none().empty()) GTEST_SKIP() << why_none();
        auto sorted = SortedVocabulary::make(small_vocabulary());
        ASSERT_TRUE(sorted) << sorted.error().message;
        vocabulary_ = *sorted;
    }

    Result<std::shared_ptr<const CompiledGrammar>> compile(
        GrammarKind kind, std::string_view text
    ) {
        return CompiledGrammar::compile({kind, std::string(text)}, *vocabulary_);
    }
    Matcher matcher(GrammarKind kind, std::string_view text) {
        auto compiled = compile(kind, text);
        EXPECT_TRUE(compiled) << compiled.error().message;
        return Matcher(*compiled);
    }
    // Whether the whole text matches: byte by byte, and the end after it.
    bool matches(GrammarKind kind, std::string_view grammar, std::string_view text) {
        Matcher one = matcher(kind, grammar);
        for (const char c : text) {
            if (!is_allowed(one, id_of(c))) return false;
            EXPECT_TRUE(one.accept(id_of(c)));
        }
        return is_allowed(one, kEnd);
    }
    static bool is_allowed(Matcher& matcher, TokenId id) {
        std::vector<std::uint32_t> words(num_mask_words(small_vocabulary().tokens.size()), 7);
        matcher.fill_mask(words);
        return (words[static_cast<std::size_t>(raw(id)) / 32] >> (raw(id) % 32) & 1) != 0;
    }

    std::shared_ptr<const SortedVocabulary> vocabulary_{};
};

TEST_F(GrammarTest, ASchemaAllowsWhatItAcceptsAndNothingElse) {
    constexpr std::string_view kSchema =
        R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
            "required": ["a", "b"], "additionalProperties": false})";
    EXPECT_TRUE(matches(GrammarKind::kJsonSchema, kSchema, R"({"a": 12, "b": "x"})"));
    EXPECT_TRUE(matches(GrammarKind::kJsonSchema, kSchema, "{\"a\":1,\n \"b\":\"y\"}"));
    EXPECT_FALSE(matches(GrammarKind::kJsonSchema, kSchema, R"({"a": 12, "b": "z"})"));
    EXPECT_FALSE(matches(GrammarKind::kJsonSchema, kSchema, R"({"a": "12", "b": "x"})"));
    EXPECT_FALSE(matches(GrammarKind::kJsonSchema, kSchema, R"({"a": 12})"));
    EXPECT_FALSE(matches(GrammarKind::kJsonSchema, kSchema, R"({"a": 12, "b": "x", "c": 1})"));
}

TEST_F(GrammarTest, AnyObjectIsAllowedByTheSchemaOfJsonMode) {
    constexpr std::string_view kSchema = R"({"type": "object"})";
    EXPECT_TRUE(matches(GrammarKind::kJsonSchema, kSchema, R"({})"));
    EXPECT_TRUE(
        matches(GrammarKind::kJsonSchema, kSchema, R"({"x": [1, {"y": null}], "z": "a\"b"})")
    );
    EXPECT_FALSE(matches(GrammarKind::kJsonSchema, kSchema, R"([1])"));
}

TEST_F(GrammarTest, RegexEbnfAndStructuralTagsAreFollowed) {
    EXPECT_TRUE(matches(GrammarKind::kRegex, "[a-c]+\\d{2}", "abc42"));
    EXPECT_FALSE(matches(GrammarKind::kRegex, "[a-c]+\\d{2}", "abc4"));
    constexpr std::string_view kEbnf = "root ::= \"(\" root \")\" | \"x\"";
    EXPECT_TRUE(matches(GrammarKind::kEbnf, kEbnf, "((x))"));
    EXPECT_FALSE(matches(GrammarKind::kEbnf, kEbnf, "((x)"));
    constexpr std::string_view kPresent =
        R"({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f>"],
            "tags": [{"begin": "<f>", "content": {"type": "json_schema", "json_schema":
            {"type": "integer"}}, "end": "</f>"}]}})";
    constexpr std::string_view kEarlier =
        R"({"type": "structural_tag", "triggers": ["<f>"], "structures":
            [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}]})";
    for (const std::string_view tag : {kPresent, kEarlier}) {
        EXPECT_TRUE(matches(GrammarKind::kStructuralTag, tag, "say <f>7</f> or"));
        EXPECT_FALSE(matches(GrammarKind::kStructuralTag, tag, "say <f>x</f>"));
    }
}

TEST_F(GrammarTest, TheMaskHasTokensOfSeveralBytesAndNoSpecialOnes) {
    Matcher one = matcher(GrammarKind::kRegex, "ab?");
    const auto ab = TokenId{257 + 6};
    ASSERT_EQ(small_vocabulary().tokens[static_cast<std::size_t>(raw(ab))], "ab");
    EXPECT_TRUE(is_allowed(one, ab));
    EXPECT_TRUE(is_allowed(one, id_of('a')));
    EXPECT_FALSE(is_allowed(one, TokenId{raw(ab) - 1}));  // abc
    EXPECT_FALSE(is_allowed(one, kSpecial));
    EXPECT_FALSE(is_allowed(one, kEnd));
    Matcher any = matcher(GrammarKind::kRegex, "[^\\n]*");
    EXPECT_FALSE(is_allowed(any, kSpecial));
    EXPECT_TRUE(is_allowed(any, kEnd));
}

TEST_F(GrammarTest, ACopyContinuesForItself) {
    Matcher one = matcher(GrammarKind::kRegex, "a(b|c)d");
    ASSERT_TRUE(one.accept(id_of('a')));
    Matcher other = one;
    EXPECT_TRUE(other.accept(id_of('b')));
    EXPECT_TRUE(is_allowed(other, id_of('d')));
    EXPECT_TRUE(is_allowed(one, id_of('c')));
    EXPECT_FALSE(is_allowed(one, id_of('d')));
}

// A retracted request runs again: its new matcher accepts the whole output in one call.
TEST_F(GrammarTest, P6_ABudgetHoldsWhetherMasksWereMadeBetweenOrNot) {
    constexpr std::string_view kTag =
        R"({"type": "structural_tag", "format": {"type": "sequence", "elements": [
            {"type": "tag", "begin": "", "content": {"type": "any_text", "max_tokens": 4},
             "end": "</t>"}, {"type": "regex", "pattern": "[a-z<]{3,9}"}]}})";
    std::vector<TokenId> output;
    for (const char c : std::string_view("ab<c</t><xy")) output.push_back(id_of(c));
    Matcher stepwise = matcher(GrammarKind::kStructuralTag, kTag);
    std::vector<std::uint32_t> words(num_mask_words(small_vocabulary().tokens.size()));
    for (std::size_t num = 0; num <= output.size(); ++num) {
        Matcher at_once = matcher(GrammarKind::kStructuralTag, kTag);
        EXPECT_TRUE(at_once.accept(std::span(output).first(num)));
        std::vector<std::uint32_t> again(words.size());
        EXPECT_TRUE(stepwise.fill_mask(words));
        EXPECT_TRUE(at_once.fill_mask(again));
        EXPECT_EQ(words, again) << num;
        if (num == output.size()) break;
        EXPECT_EQ(is_allowed(stepwise, id_of('x')), num < 4 || num >= 8) << num;
        EXPECT_TRUE(stepwise.accept(output[num]));
    }
}

TEST_F(GrammarTest, AWrongTokenAllowsNothingAfterIt) {
    for (const TokenId wrong : {id_of('x'), kSpecial, kEnd, TokenId{-1}, TokenId{100000}}) {
        Matcher one = matcher(GrammarKind::kRegex, "aa");
        EXPECT_FALSE(one.accept(wrong));
        EXPECT_FALSE(is_allowed(one, id_of('a')));
        EXPECT_FALSE(one.accept(id_of('a')));
    }
}

TEST_F(GrammarTest, AnEndTokenEndsACompleteOutput) {
    Matcher one = matcher(GrammarKind::kRegex, "a");
    ASSERT_TRUE(one.accept(id_of('a')));
    EXPECT_FALSE(one.has_ended());
    EXPECT_FALSE(is_allowed(one, id_of('a')));
    ASSERT_TRUE(one.accept(kEnd));
    EXPECT_TRUE(one.has_ended());
    EXPECT_FALSE(is_allowed(one, kEnd));
    EXPECT_FALSE(one.accept(kEnd));
}

// Each token adds parses, so that following the output takes ever longer.
TEST_F(GrammarTest, AGrammarThatTakesTooLongToFollowAllowsNothing) {
    Matcher one = matcher(GrammarKind::kEbnf, "root ::= \"a\" | root root | root root root");
    const TimePoint begin = Clock::now();
    EXPECT_TRUE(one.accept(std::vector<TokenId>(10, id_of('a'))));
    EXPECT_FALSE(one.accept(std::vector<TokenId>(100'000, id_of('a'))));
    EXPECT_FALSE(is_allowed(one, id_of('a')));
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(60));
}

// Each token adds parses: token n takes time in proportion to the cube of n.
constexpr std::string_view kCostly = "root ::= e\ne ::= e e | [a-z ]";

Duration cpu_time() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::chrono::duration_cast<Duration>(
        std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec)
    );
}

// Every step waits while rank 0 follows an output, so the calls of one request are bounded
// together.
TEST_F(GrammarTest, ACostlyOutputEndsWhenItsAllowanceIsUsedUp) {
    Matcher one = matcher(GrammarKind::kEbnf, kCostly);
    std::int64_t num = 0;
    Duration last{};
    const Duration begin = cpu_time();
    for (Duration end = begin; is_allowed(one, id_of('a')); ++num) {
        one.accept(id_of('a'));
        last = std::max(last, cpu_time() - std::exchange(end, cpu_time()));
    }
    const Duration used = cpu_time() - begin;
    EXPECT_GT(num, 10);
    EXPECT_LT(used, CpuAllowance::kMax + num * CpuAllowance::kPerToken + 2 * last);
    EXPECT_FALSE(one.accept(id_of('a')));
}

TEST_F(GrammarTest, CopiesForDraftsUseTheSameAllowance) {
    const auto compiled = compile(GrammarKind::kEbnf, kCostly);
    ASSERT_TRUE(compiled);
    const auto allowance = std::make_shared<CpuAllowance>();
    Matcher one(*compiled, allowance);
    while (allowance->left() > CpuAllowance::kMax / 2) ASSERT_TRUE(one.accept(id_of('a')));
    for (int i = 0; i < 1000 && !allowance->is_used_up(); ++i) Matcher(one).accept(id_of('a'));
    EXPECT_TRUE(allowance->is_used_up());
    EXPECT_FALSE(is_allowed(one, id_of('a')));
}

TEST_F(GrammarTest, P4_AReplayUsesNoAllowanceAndEndsAsTheFirstRunDid) {
    const auto compiled = compile(GrammarKind::kEbnf, kCostly);
    ASSERT_TRUE(compiled);
    const auto allowance = std::make_shared<CpuAllowance>();
    Matcher one(*compiled, allowance);
    std::vector<TokenId> output;
    std::vector<std::uint32_t> words(num_mask_words(small_vocabulary().tokens.size()));
    std::vector<std::uint32_t> again(words.size());
    const auto replay = [&] {
        Matcher other(*compiled, allowance);
        const bool is_right = other.replay(output);
        return other.fill_mask(again) && is_right;
    };
    for (const Duration least : {CpuAllowance::kMax / 2, Duration::zero()}) {
        while (allowance->left() > least) {
            one.accept(id_of('a'));
            one.fill_mask(words);
            output.push_back(id_of('a'));
        }
        const Duration left = allowance->left();
        EXPECT_EQ(replay(), !allowance->is_used_up());
        EXPECT_EQ(allowance->left(), left);
        EXPECT_EQ(words, again);
    }
    EXPECT_TRUE(allowance->is_used_up());
}

TEST_F(GrammarTest, WhatCannotBeCompiledIsNamed) {
    for (const auto& [kind, text] : std::vector<std::pair<GrammarKind, std::string>>{
             {GrammarKind::kJsonSchema, "{"},
             {GrammarKind::kJsonSchema, R"({"type": "nothing"})"},
             {GrammarKind::kRegex, "(a"},
             {GrammarKind::kEbnf, "root ::= missing"},
             {GrammarKind::kStructuralTag, "[]"}}) {
        const auto compiled = compile(kind, text);
        ASSERT_FALSE(compiled) << text;
        EXPECT_EQ(compiled.error().code, ErrorCode::kInvalidArgument);
        EXPECT_TRUE(compiled.error().message.starts_with(messages::name_of(kind)))
            << compiled.error().message;
    }
}

// The compiler would ignore these keywords, so outputs would not be valid.
TEST_F(GrammarTest, KeywordsThatWouldBeIgnoredAreNamed) {
    for (const auto& [schema, keyword] : std::vector<std::pair<std::string, std::string>>{
             {R"({"maxLength": 2})", "maxLength"},
             {R"({"items": {"minimum": 5}})", "minimum"},
             {R"({"type": "string", "anyOf": [{"pattern": "a"}]})", "pattern"},
             {R"({"allOf": [{"properties": {"a": {}}}], "additionalProperties": false})",
              "additionalProperties"},
             {R"({"$ref": "#/$defs/a", "maxItems": 2, "$defs": {"a": {}}})", "maxItems"},
             {R"({"type": "array", "contains": false})", "contains"},
             {R"({"type": "array", "unevaluatedItems": false})", "unevaluatedItems"},
             {R"({"required": ["a"]})", "required"},
             {R"({"minItems": 3})", "minItems"},
             {R"({"maxProperties": 0})", "maxProperties"},
             {R"({"patternProperties": {"^a": {"type": "integer"}}})", "patternProperties"},
             {R"({"format": "date"})", "format"},
             {R"({"properties": {"b": {}}, "required": ["a"]})", "required"},
             {R"({"type": ["object", "null"], "required": ["a"]})", "required"},
             {R"({"type": "object", "properties": {"a": {}}, "dependencies": {"a": ["b"]}})",
              "dependencies"},
             {R"({"type": "object", "properties": {"a": {"$recursiveRef": "#"}}})",
              "$recursiveRef"},
             {R"({"type": "string", "format": "date", "pattern": "^2026"})", "pattern"},
             {R"({"type": "integer", "enum": [1, 9], "minimum": 5})", "minimum"},
             {R"({"const": "ab", "maxLength": 1})", "maxLength"},
             {R"({"type": "string", "enum": ["a", 1]})", "enum"},
             {R"({"type": ["string", "null"], "const": 1})", "const"},
             {R"({"const": "a", "enum": ["b"]})", "enum"}}) {
        const auto compiled = compile(GrammarKind::kJsonSchema, schema);
        ASSERT_FALSE(compiled) << schema;
        EXPECT_NE(compiled.error().message.find("keyword " + keyword), std::string::npos)
            << compiled.error().message;
    }
    EXPECT_TRUE(compile(
        GrammarKind::kJsonSchema,
        R"({"type": "object", "properties": {"a": {"anyOf": [{"type": "string", "maxLength": 2},
            {"type": "null"}], "title": "A"}, "b": {"$ref": "#/$defs/b", "description": "B"},
            "maxLength": {"type": "integer", "minimum": 1}}, "$defs": {"b": {"type": "null"}}})"
    ));
}

// Such keywords restrict nothing here, or the compiler follows them.
TEST_F(GrammarTest, SchemasOfCommonClientsAreAccepted) {
    for (const std::string_view schema :
         {R"({"type": "string", "enum": ["a", "b"], "title": "A", "default": "a"})",
          R"({"const": "a", "enum": ["a"], "type": "string"})",
          R"({"type": ["string", "null"], "enum": ["a", null]})",
          R"({"type": "number", "enum": [1, 2.5]})",
          R"({"type": "integer", "const": 1.0})",
          R"({"type": "string", "enum": ["a"], "format": "x", "minimum": 5})",
          R"({"type": "string", "format": "x", "pattern": "a+"})",
          R"({"type": "string", "format": "date-time"})",
          R"({"properties": {}, "required": [], "additionalProperties": false})",
          R"({"properties": {"a": {"type": "integer"}}, "required": ["a"], "minProperties": 1})",
          R"({"items": {"type": "integer"}, "minItems": 1, "required": ["a"]})",
          R"({"type": "object", "propertyNames": {"type": "string"},
              "additionalProperties": {"type": "integer"}})",
          R"({"anyOf": [{"$ref": "#/$defs/a"}], "discriminator": {"propertyName": "format",
              "mapping": {"format": "#/$defs/a"}}, "$defs": {"a": {"type": "null"}}})"}) {
        const auto compiled = compile(GrammarKind::kJsonSchema, schema);
        EXPECT_TRUE(compiled) << schema << ": " << compiled.error().message;
    }
}

TEST_F(GrammarTest, KeywordsThatWouldBeIgnoredAreNamedInBothFormsOfAStructuralTag) {
    for (const std::string_view tag :
         {R"({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f>"],
              "tags": [{"begin": "<f>", "content": {"type": "json_schema", "json_schema":
              {"type": "integer", "not": {"const": 7}}}, "end": "</f>"}]}})",
          R"({"type": "structural_tag", "triggers": ["<f>"], "structures": [{"begin": "<f>",
              "schema": {"type": "integer", "not": {"const": 7}}, "end": "</f>"}]})"}) {
        const auto compiled = compile(GrammarKind::kStructuralTag, tag);
        ASSERT_FALSE(compiled) << tag;
        EXPECT_NE(compiled.error().message.find("keyword not"), std::string::npos)
            << compiled.error().message;
    }
}

TEST_F(GrammarTest, AVocabularyWithoutAnEndIsRefused) {
    Vocabulary vocabulary = small_vocabulary();
    vocabulary.end_ids.clear();
    EXPECT_FALSE(SortedVocabulary::make(vocabulary));
}

}  // namespace
}  // namespace pitstop::grammar
