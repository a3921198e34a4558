// A model's tokens as grammars see them: the bytes that each token adds to a text, and the tokens
// that end an output. Special tokens have no bytes: no grammar allows them.
//
// Thread: any; immutable.
#pragma once

#include "base/ids.h"
#include "base/result.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::text {
class Tokenizer;
}  // namespace pitstop::text

namespace pitstop::grammar {

struct Vocabulary {
    std::vector<std::string> tokens{};  // [vocab_len]; empty: a special token, or an unused id
    std::vector<TokenId> end_ids{};     // ascending, below vocab_len

    // Returns the vocabulary of a model with `vocab_len` ids.
    static Vocabulary of(
        const text::Tokenizer& tokenizer, std::int64_t vocab_len, std::span<const TokenId> end_ids
    );

    // Convert to and from bytes, for another process of this build. Errors: kMalformed: to_bytes()
    // did not write these bytes.
    [[nodiscard]] std::string to_bytes() const;
    static Result<Vocabulary> from_bytes(std::string_view bytes);

    friend bool operator==(const Vocabulary&, const Vocabulary&) = default;
};

}  // namespace pitstop::grammar
