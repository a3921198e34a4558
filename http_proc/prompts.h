// Prompts whose tokens or whose text an answer shows.
#pragma once

#include "http_proc/exchange.h"
#include "messages/generation.h"

#include <string>
#include <vector>

namespace pitstop {

// Puts the prompt's tokens in place of its text, where it has text. Errors: the tree's.
[[nodiscard]] Task<Result<>> tokenize_prompt(Exchange& exchange, Generate& prompt);

// The text of tokens. Errors: the tree's.
[[nodiscard]] Task<Result<std::string>> text_of(Exchange& exchange, std::vector<TokenId> ids);

}  // namespace pitstop
