// Reads the token with which a model's tokenizer ends a turn. If a chat model was trained on top of
// a base model, often only the tokenizer has this token: config.json and generation_config.json
// still name the base model's.
//
// Source: SGLang and vLLM also end a request at the tokenizer's eos_token_id, in addition to the
//          tokens in the two files.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "text/tokenizer.h"

#include <cstddef>
#include <optional>
#include <string>

namespace pitstop::tokenizer {

inline constexpr std::size_t kTokenizerConfigBytesMax = std::size_t{4} << 20;

// Returns eos_token of `model_dir`/tokenizer_config.json; nothing if the file or the token is
// missing. Errors: the file is malformed, or the tokenizer does not have the token.
Result<std::optional<TokenId>> read_end_token(
    const std::string& model_dir, const text::Tokenizer& tokenizer
);

}  // namespace pitstop::tokenizer
