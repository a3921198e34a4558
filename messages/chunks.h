// Joins and truncates output chunks. Chunks are joined where output waits: in the detokenizer
// if the request does not stream, at the door if the reader is slow, in a client until it
// reads. Chunks are truncated where output ends early. Tokens, logprobs and spans stay in step
// (P3).
#pragma once

#include "messages/generation.h"

#include <cstddef>

namespace pitstop::messages {

// Appends `next`, the next chunk of the same request. `whole` keeps its key and rid; if `next` has
// counts or a finish, they replace those of `whole`.
void append_chunk(OutputChunk& whole, OutputChunk next);

// Keeps the first `num_tokens` tokens and all data about them. The text is unchanged. REQUIRES:
// num_tokens <= chunk.tokens.size().
void keep_tokens(OutputChunk& chunk, std::size_t num_tokens);

// Returns an upper bound of the chunk's bytes in a message body, within a small factor.
[[nodiscard]] std::size_t bytes_bound(const OutputChunk& chunk);

}  // namespace pitstop::messages
