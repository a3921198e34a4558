// The members of a vocabulary and of a compiled grammar. Only this folder includes this file.
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
    // The grammar's smallest max_tokens, which bounds the tokens of a part of the output; null: the
    // grammar has no such bound.
    std::optional<std::int64_t> tokens_max{};

    [[nodiscard]] bool has_bytes(TokenId id) const {
        const auto index = static_cast<std::size_t>(raw(id));
        return raw(id) >= 0 && index < vocab_len && !info.GetDecodedVocab()[index].empty();
    }
};

}  // namespace pitstop::grammar
