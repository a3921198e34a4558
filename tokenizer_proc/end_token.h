// Reads the token with which a model's tokenizer ends a turn. For a chat model that was trained on
// top of a base model this is often the only place that has it: config.json and
// generation_config.json still name the base model's token.
//
// Source: SGLang and vLLM, too, end a request at the tokenizer's eos_token_id, besides the tokens
//         of the two files.
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
// missing. Errors: the file is broken, or its token is not the tokenizer's.
Result<std::optional<TokenId>> read_end_token(
    const std::string& model_dir, const text::Tokenizer& tokenizer
);

}  // namespace pitstop::tokenizer
