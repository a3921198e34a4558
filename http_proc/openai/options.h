// Reads the fields that OpenAI's completions, its chat and vLLM's generate share, with the extras
// of SGLang and vLLM: sampling, the number of samples, the form of the answer.
//
// Source: OpenAI's API reference; protocol.py of SGLang and of vLLM.
#pragma once

#include "http_proc/format/json_body.h"
#include "http_proc/format/routed_experts.h"
#include "messages/generation.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace pitstop::http {

struct OpenAiOptions {
    std::string model{};  // as the caller wrote it, for answers; empty: the served model
    std::string id{};     // from the caller: rid or request_id; empty: none
    messages::SamplingParams sampling{};
    std::int64_t n = 1;
    bool is_streamed = false;
    bool wants_usage = false;         // stream_options.include_usage: in a stream's last event
    bool wants_usage_always = false;  // stream_options.continuous_usage_stats
    bool wants_token_ids = false;
    bool wants_prompt_ids = false;                  // the answer shows the prompt's ids, too
    bool shows_tokens_as_ids = false;               // "token_id:7" instead of a token's text
    std::optional<std::int64_t> prompt_logprobs{};  // vLLM's: this many per prompt token
    std::vector<TokenId> logprob_ids{};             // vLLM's logprob_token_ids
    messages::LogprobsMode logprobs_mode = messages::LogprobsMode::kRaw;
    bool names_logprobs_mode = false;
    RoutesAsked routes{};
    std::int64_t priority = 0;  // larger first
    std::optional<std::int64_t> replica{};
    messages::KvTolerance kv_tolerance = messages::KvTolerance::kNever;
    std::int64_t kv_max_lag = 0;
    std::optional<std::vector<TokenId>> draft_ids{};
    std::optional<std::string> draft_key{};
    std::string adapter{};  // from lora_path, or from the model's name; empty: none

    // Returns a request with these options; the caller fills in the prompt and the logprobs.
    [[nodiscard]] messages::Generate request() const;
};

// Reads the options of a request, except `lora_path`. `fields` gets the errors.
void read_openai_options(FieldReader& fields, OpenAiOptions& options);
// Reads the adapter of a request of one prompt.
void read_lora_path(FieldReader& fields, OpenAiOptions& options);
// Reads the options that vLLM's generate has in an object of their own. Leaves `max_new_tokens`
// unchanged without max_tokens, and `routes.start` without routed_experts_prompt_start. `served`:
// fields that other routes refuse and that the caller reads.
void read_openai_sampling(
    FieldReader& fields, OpenAiOptions& options, std::span<const std::string_view> served = {}
);

// Checks the limits of the output's length under the caller's names; `longest` names the maximum.
// messages::invalid() checks the engine's own limits.
void check_lengths(
    FieldReader& fields, std::string_view longest, const messages::SamplingParams& params
);

// Checks that a number of top logprobs is in the accepted range, or kAllLogprobs.
inline constexpr std::int64_t kAllLogprobs = -1;  // vLLM's word for the whole vocabulary
void check_top_logprobs(
    FieldReader& fields, std::string_view name, const std::optional<std::int64_t>& num
);

inline constexpr std::int64_t kOpenAiSamplesMax = 1024;

}  // namespace pitstop::http
