// Makes the request for a replica from a client's request, once the prompt is tokenized.
#pragma once

#include "base/ids.h"
#include "messages/generation.h"

#include <vector>

namespace pitstop::tokenizer {

// Sets all members but the key. The seed is the client's, or absent.
[[nodiscard]] messages::TokenizedRequest tokenized_request(
    messages::Generate message, std::vector<TokenId> prompt
);

}  // namespace pitstop::tokenizer
