// Parses the body of vLLM's /inference/v1/generate: tokens in, tokens out. Has no coroutines, so
// that a fuzz target can run it.
#pragma once

#include "base/result.h"
#include "http_proc/openai/options.h"
#include "http_proc/vllm/candidate_scores.h"

#include <optional>
#include <string_view>
#include <vector>

namespace pitstop::http {

struct VllmGenerate {
    OpenAiOptions options{};
    std::vector<TokenId> prompt{};
    std::optional<std::int64_t> logprobs{};  // absent: no logprobs; 0: of the sampled token only
    bool shows_text = false;                 // output_mode text
    bool wants_mask = false;
    bool wants_packed_support = false;  // SkyRL's form of the mask
    std::optional<CandidateScores> candidates{};
    std::vector<TokenId> trace{};  // trace_decode_token_ids; empty: the output is sampled
};

// Errors: kInvalidArgument or kMalformed, which become status 400 with the text.
[[nodiscard]] Result<VllmGenerate> parse_vllm_generate(std::string_view body);
// Parses SkyRL's /skyrl/v1/generate: the same body, and return_sample_support. Refuses SkyRL's
// return_full_logprobs. `context_len`: the model's, which limits an output without max_tokens.
[[nodiscard]] Result<VllmGenerate> parse_skyrl_generate(
    std::string_view body, std::int64_t context_len
);

}  // namespace pitstop::http
