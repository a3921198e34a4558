// Joins and cuts output chunks. Whoever holds output back (the detokenizer for a request that does
// not stream, the door for a slow reader, a client for a stream nobody reads yet) joins it; whoever
// ends an output early cuts it. Both keep P3: tokens, logprobs and spans stay in step.
#pragma once

#include "messages/generation.h"

#include <cstddef>

namespace pitstop::messages {

// Appends `next`, the chunk that follows `whole` in the same request. `whole` keeps its key and
// rid; counts and finish become those of `next` where it has them.
void append_chunk(OutputChunk& whole, OutputChunk next);

// Keeps the first `num_tokens` tokens with all that belongs to them. The text stays as it is.
// REQUIRES: num_tokens <= chunk.tokens.size().
void keep_tokens(OutputChunk& chunk, std::size_t num_tokens);

// Returns an upper bound of the bytes the chunk takes in a message body, within a small factor.
[[nodiscard]] std::size_t bytes_bound(const OutputChunk& chunk);

}  // namespace pitstop::messages
