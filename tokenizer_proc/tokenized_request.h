// Makes the request that a replica runs of a client's, once its prompt is tokens.
#pragma once

#include "base/ids.h"
#include "messages/generation.h"

#include <vector>

namespace pitstop::tokenizer {

// Everything but the key. The seed is the client's, or absent.
[[nodiscard]] messages::TokenizedRequest tokenized_request(
    messages::Generate message, std::vector<TokenId> prompt
);

}  // namespace pitstop::tokenizer
