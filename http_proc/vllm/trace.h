// vLLM's trace_decode_token_ids: an output whose tokens the request gives, with their logprobs. It
// is not sampled: the request runs as one prompt of both, whose tokens have the bits that they
// would have in an output (P6).
#pragma once

#include "base/result.h"
#include "http_proc/vllm/generate_request.h"
#include "messages/generation.h"

#include <cstddef>
#include <span>

namespace pitstop::http {

// Makes `call` a request for scores. Errors: kInvalidArgument, by the name of a field that a trace
// cannot have.
[[nodiscard]] Result<> prepare_trace(VllmGenerate& call);

// Moves the scores of the prompt's last tokens, which are the trace, to the output of a whole
// answer.
void show_trace(
    std::span<const TokenId> trace,
    const messages::LogprobOptions& asked,
    messages::OutputChunk& chunk
);

}  // namespace pitstop::http
