// Measures what grammars cost, on one thread: compiling one, and the mask of each token.
//
//   pitstop_grammar_bench TOKENIZER_DIR     (for example with the tokenizer of Qwen3: 151,936 ids)
//
// Outputs are drawn uniformly among what the mask allows, until they end or have kTokensMax tokens.
#include "base/time.h"
#include "grammar/matcher.h"
#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace pitstop {
namespace {

constexpr std::int64_t kVocabStep = 128;  // models pad their vocabularies
constexpr int kTokensMax = 2000;
constexpr int kOutputs = 5;

double microseconds(Duration duration) {
    return std::chrono::duration<double, std::micro>(duration).count();
}

// Returns a schema with this many fields, of every kind in turn.
std::string schema_of(int num_fields) {
    const std::vector<std::string> kinds{
        R"({"type": "string", "maxLength": 40})",
        R"({"type": "integer"})",
        R"({"type": "number"})",
        R"({"enum": ["red", "green", "blue"]})",
        R"({"type": "boolean"})",
        R"({"type": "array", "items": {"type": "integer"}, "maxItems": 4})"};
    std::string properties;
    std::string required;
    for (int i = 0; i < num_fields; ++i) {
        const std::string comma = i > 0 ? ", " : "";
        const std::string name = fmt::format("\"field_{}\"", i);
        properties += comma + name + ": " + kinds[static_cast<std::size_t>(i) % kinds.size()];
        required += comma + name;
    }
    return fmt::format(
        R"({{"type": "object", "properties": {{{}}}, "required": [{}]}})", properties, required
    );
}

void measure(
    std::string_view name,
    const messages::Grammar& grammar,
    const grammar::SortedVocabulary& vocabulary,
    std::size_t vocab_len
) {
    const TimePoint begin = Clock::now();
    const auto compiled = grammar::CompiledGrammar::compile(grammar, vocabulary);
    const Duration compiling = Clock::now() - begin;
    if (!compiled) {
        fmt::print("{}: {}\n", name, compiled.error().message);
        return;
    }
    std::vector<double> masks;
    std::vector<double> accepts;
    std::mt19937 random(1);
    std::vector<std::uint32_t> words(grammar::num_mask_words(vocab_len));
    std::vector<TokenId> allowed;
    for (int i = 0; i < kOutputs; ++i) {
        grammar::Matcher matcher(*compiled);
        for (int n = 0; n < kTokensMax && !matcher.has_ended(); ++n) {
            const TimePoint mask_begin = Clock::now();
            matcher.fill_mask(words);
            masks.push_back(microseconds(Clock::now() - mask_begin));
            allowed.clear();
            for (std::size_t id = 0; id < vocab_len; ++id) {
                if ((words[id / 32] >> (id % 32) & 1) != 0)
                    allowed.push_back(TokenId{static_cast<std::int32_t>(id)});
            }
            if (allowed.empty()) break;
            const TokenId id = allowed[random() % allowed.size()];
            const TimePoint accept_begin = Clock::now();
            matcher.accept(id);
            accepts.push_back(microseconds(Clock::now() - accept_begin));
        }
    }
    std::ranges::sort(masks);
    std::ranges::sort(accepts);
    const auto at = [](const std::vector<double>& sorted, double part) {
        return sorted[static_cast<std::size_t>(part * static_cast<double>(sorted.size() - 1))];
    };
    fmt::print(
        "{}: compiled in {:.0f} ms, {:.1f} MB; of {} tokens: mask {:.1f} us (median), {:.1f} (99 "
        "%), "
        "{:.1f} (most); accept {:.1f} us (median), {:.1f} (99 %)\n",
        name,
        microseconds(compiling) / 1e3,
        static_cast<double>((*compiled)->bytes()) / 1e6,
        masks.size(),
        at(masks, 0.5),
        at(masks, 0.99),
        masks.back(),
        at(accepts, 0.5),
        at(accepts, 0.99)
    );
}

int run(const char* directory) {
    const auto tokenizer = text::Tokenizer::load(directory);
    if (!tokenizer) return std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str()), 1;
    const std::int64_t vocab_len =
        ((*tokenizer)->vocab_size() + kVocabStep - 1) / kVocabStep * kVocabStep;
    const std::vector<TokenId> end_ids{TokenId{static_cast<std::int32_t>(vocab_len) - 1}};
    const TimePoint begin = Clock::now();
    const auto vocabulary =
        grammar::SortedVocabulary::make(grammar::Vocabulary::of(**tokenizer, vocab_len, end_ids));
    if (!vocabulary) return std::fprintf(stderr, "%s\n", vocabulary.error().message.c_str()), 1;
    fmt::print(
        "{} ids, sorted in {:.0f} ms\n", vocab_len, microseconds(Clock::now() - begin) / 1e3
    );
    using messages::GrammarKind;
    const std::vector<std::pair<std::string_view, messages::Grammar>> all{
        {"a schema of 50 fields", {GrammarKind::kJsonSchema, schema_of(50)}},
        {"a schema of 5 fields", {GrammarKind::kJsonSchema, schema_of(5)}},
        {"any object", {GrammarKind::kJsonSchema, R"({"type": "object"})"}},
        {"a regex", {GrammarKind::kRegex, "(yes|no), [A-Za-z ]{1,40}[.!]"}}};
    for (const auto& [name, grammar] : all)
        measure(name, grammar, **vocabulary, static_cast<std::size_t>(vocab_len));
    return 0;
}

}  // namespace
}  // namespace pitstop

int main(int argc, char** argv) {
    if (argc == 2) return pitstop::run(argv[1]);
    std::fputs("pitstop_grammar_bench TOKENIZER_DIR\n", stderr);
    return 2;
}
