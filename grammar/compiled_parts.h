// What a vocabulary and a compiled grammar consist of, for this folder alone.
#pragma once

#include "grammar/compiled_grammar.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <xgrammar/compiler.h>

namespace pitstop::grammar {

struct SortedVocabulary::Parts {
    xgrammar::TokenizerInfo info;
};

struct CompiledGrammar::Parts {
    xgrammar::CompiledGrammar grammar;
    xgrammar::TokenizerInfo info;
    std::size_t vocab_len = 0;
    // The least of all bounds (max_tokens) of the tokens of a part of an output; null: there is no
    // such bound.
    std::optional<std::int64_t> tokens_max{};

    [[nodiscard]] bool has_bytes(TokenId id) const {
        const auto index = static_cast<std::size_t>(raw(id));
        return raw(id) >= 0 && index < vocab_len && !info.GetDecodedVocab()[index].empty();
    }
};

}  // namespace pitstop::grammar
