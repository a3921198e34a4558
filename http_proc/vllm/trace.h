// vLLM's trace_decode_token_ids: the request gives the output's tokens, and the answer has their
// logprobs. Nothing is sampled: prompt and trace run as one prompt, whose logprobs have the bits
// that they would have in an output (P6).
#pragma once

#include "base/result.h"
#include "http_proc/vllm/generate_request.h"
#include "messages/generation.h"

#include <cstddef>
#include <span>

namespace pitstop::http {

// Turns `call` into a request for scores. Errors: kInvalidArgument, naming a field that is not
// supported with a trace.
[[nodiscard]] Result<> prepare_trace(VllmGenerate& call);

// Moves the scores of the prompt's last tokens, which are the trace, into the output of a complete
// answer.
void show_trace(
    std::span<const TokenId> trace,
    const messages::LogprobOptions& asked,
    messages::OutputChunk& chunk
);

}  // namespace pitstop::http
