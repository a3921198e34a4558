#include "grammar/compiled_grammar.h"

#include "base/check.h"
#include "base/utf8.h"
#include "grammar/compiled_parts.h"
#include "grammar/ignored_keywords.h"
#include "messages/structural_tag.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include <xgrammar/exception.h>

namespace pitstop::grammar {
namespace {

using messages::GrammarKind;

constexpr std::size_t kMessageBytesMax = 512;
// The most white space between two tokens of JSON: enough to indent, too little to fill an
// output.
constexpr int kWhitespaceMax = 16;

// Returns the compiler's message as one line of bounded length.
std::string line_of(std::string_view what) {
    std::string line(utf8_prefix(what, kMessageBytesMax));
    std::ranges::replace(line, '\n', ' ');
    if (!is_utf8(line)) return "it is not UTF-8";
    return line;
}

using Json = nlohmann::ordered_json;

// Bounds the white space between JSON's tokens, in all schemas of a structural tag.
void bound_whitespace(Json& format) {
    if (!format.is_object() && !format.is_array()) return;
    if (format.is_object() && format.contains("json_schema")) {
        if (!format.contains("max_whitespace_cnt")) format["max_whitespace_cnt"] = kWhitespaceMax;
        return;
    }
    for (auto& [key, value] : format.items()) bound_whitespace(value);
}

// Returns the structural tag in its present form, with bounded white space. A text that is no JSON
// is returned as it is.
std::string tag_to_compile(const std::string& text) {
    Json tag = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!tag.is_object()) return text;
    tag = messages::in_present_form(std::move(tag));
    bound_whitespace(tag);
    return tag.dump();
}

xgrammar::CompiledGrammar compile_with(
    xgrammar::GrammarCompiler& compiler, const messages::Grammar& grammar
) {
    switch (grammar.kind) {
        case GrammarKind::kJsonSchema:
            return compiler.CompileJSONSchema(
                grammar.text,
                /*any_whitespace=*/true,
                /*indent=*/std::nullopt,
                /*separators=*/std::nullopt,
                /*strict_mode=*/true,
                kWhitespaceMax
            );
        case GrammarKind::kRegex:
            return compiler.CompileRegex(grammar.text);
        case GrammarKind::kEbnf:
            return compiler.CompileGrammar(grammar.text);
        case GrammarKind::kStructuralTag:
            return compiler.CompileStructuralTag(tag_to_compile(grammar.text));
    }
    CHECK(false);
}

// Returns the smallest bound of a part's tokens: "max_tokens": 7 in a structural tag, or
// [max_tokens=7] in EBNF. A text that only looks like a bound does no harm (matcher.cpp).
std::optional<std::int64_t> least_tokens_max(const messages::Grammar& grammar) {
    constexpr std::string_view kName = "max_tokens";
    constexpr std::string_view kDigits = "0123456789";
    constexpr std::size_t kDigitsMax = 10;
    const bool is_tag = grammar.kind == GrammarKind::kStructuralTag;
    if (!is_tag && grammar.kind != GrammarKind::kEbnf) return std::nullopt;
    const std::string text = is_tag ? tag_to_compile(grammar.text) : grammar.text;
    std::optional<std::int64_t> least;
    for (std::size_t at = text.find(kName); at != std::string::npos; at = text.find(kName, at)) {
        at = text.find_first_not_of("\" \t\r\n:=", at + kName.size());
        if (at == std::string::npos) break;
        const std::string digits =
            text.substr(at, std::min(text.find_first_not_of(kDigits, at) - at, kDigitsMax));
        const std::int64_t bound = digits.empty() ? 0 : std::stoll(digits);
        least = std::min(least.value_or(bound), bound);
    }
    return least;
}

}  // namespace

std::string_view why_none() { return {}; }

Result<std::shared_ptr<const SortedVocabulary>> SortedVocabulary::make(const Vocabulary& vocabulary
) {
    if (vocabulary.end_ids.empty()) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "the model names no end-of-sequence token, so no output with a grammar could end"
        );
    }
    std::vector<std::int32_t> end_ids;
    for (const TokenId id : vocabulary.end_ids) end_ids.push_back(raw(id));
    const auto vocab_len = static_cast<int>(vocabulary.tokens.size());
    try {
        return std::shared_ptr<const SortedVocabulary>(
            new SortedVocabulary(std::make_shared<const Parts>(Parts{xgrammar::TokenizerInfo(
                vocabulary.tokens, xgrammar::VocabType::RAW, vocab_len, std::move(end_ids)
            )}))
        );
    } catch (const std::exception& error) {
        return make_error(
            ErrorCode::kUnsupported,
            "xgrammar does not accept the vocabulary: {}",
            line_of(error.what())
        );
    }
}

// Turns the exceptions by which the compiler reports problems into errors.
Result<std::shared_ptr<const CompiledGrammar>> CompiledGrammar::compile(
    const messages::Grammar& grammar, const SortedVocabulary& vocabulary
) {
    if (const std::string keyword = ignored_keyword(grammar); !keyword.empty()) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} cannot be compiled: the keyword {} is not supported, or is not supported without a "
            "type or together with the schema's other keywords (anyOf, oneOf, allOf, $ref, enum, "
            "const, format), or does not fit them",
            messages::name_of(grammar.kind),
            keyword
        );
    }
    try {
        xgrammar::GrammarCompiler compiler(
            vocabulary.parts().info, /*max_threads=*/1, /*cache_enabled=*/false
        );
        Parts parts{
            .grammar = compile_with(compiler, grammar),
            .info = vocabulary.parts().info,
            .vocab_len = static_cast<std::size_t>(vocabulary.parts().info.GetVocabSize()),
            .tokens_max = least_tokens_max(grammar),
        };
        return std::shared_ptr<const CompiledGrammar>(
            new CompiledGrammar(std::make_shared<const Parts>(std::move(parts)))
        );
    } catch (const std::exception& error) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} cannot be compiled: {}",
            messages::name_of(grammar.kind),
            line_of(error.what())
        );
    }
}

std::int64_t CompiledGrammar::bytes() const {
    return static_cast<std::int64_t>(parts_->grammar.MemorySizeBytes());
}

}  // namespace pitstop::grammar
