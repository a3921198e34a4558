// Joins and truncates output chunks. Chunks are joined where output waits: in the detokenizer if
// the request does not stream, at the door if the reader is slow, in a client until the stream is
// read. Chunks are truncated where output ends early. Both preserve P3: tokens, logprobs and spans
// stay in step.
#pragma once

#include "messages/generation.h"

#include <cstddef>

namespace pitstop::messages {

// Appends `next`, the chunk that follows `whole` in the same request. `whole` keeps its key and
// rid; counts and finish are taken from `next` where it has them.
void append_chunk(OutputChunk& whole, OutputChunk next);

// Keeps the first `num_tokens` tokens and everything that belongs to them. The text is unchanged.
// REQUIRES: num_tokens <= chunk.tokens.size().
void keep_tokens(OutputChunk& chunk, std::size_t num_tokens);

// Returns an upper bound, tight within a small factor, of the chunk's bytes in a message body.
[[nodiscard]] std::size_t bytes_bound(const OutputChunk& chunk);

}  // namespace pitstop::messages
