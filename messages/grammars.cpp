#include "messages/grammars.h"

#include <fmt/format.h>

namespace pitstop::messages {

std::optional<Grammar> grammar_of(const SamplingParams& params) {
    if (!params.json_schema.empty()) return Grammar{GrammarKind::kJsonSchema, params.json_schema};
    if (!params.regex.empty()) return Grammar{GrammarKind::kRegex, params.regex};
    if (!params.ebnf.empty()) return Grammar{GrammarKind::kEbnf, params.ebnf};
    if (!params.structural_tag.empty())
        return Grammar{GrammarKind::kStructuralTag, params.structural_tag};
    return std::nullopt;
}

std::optional<std::string> invalid(const WorkerCompile& message) {
    const std::size_t num_bytes = message.grammar.text.size();
    if (num_bytes > 0 && num_bytes <= kGrammarBytesMax) return std::nullopt;
    return fmt::format("a grammar has 1 to {} bytes, not {}", kGrammarBytesMax, num_bytes);
}

}  // namespace pitstop::messages
