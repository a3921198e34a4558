// Reads the common fields of OpenAI's completions, its chat and vLLM's generate: sampling, number
// of samples, form of the answer; with the extras of SGLang and vLLM.
//
// Source: OpenAI's API reference; protocol.py of SGLang and of vLLM.
#pragma once

#include "http_proc/format/json_body.h"
#include "http_proc/format/routed_experts.h"
#include "messages/generation.h"

#include <cstdint>
#include <optional>
#include <string>

namespace pitstop::http {

struct OpenAiOptions {
    std::string model{};  // as given, and returned; empty: the served model
    std::string id{};     // from the caller: rid or request_id; empty: none
    messages::SamplingParams sampling{};
    std::int64_t n = 1;
    bool is_streamed = false;
    bool wants_usage = false;         // stream_options.include_usage: at the end of a stream
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
    std::string adapter{};  // of lora_path, or of the model's name; empty: none

    // Makes a request with all these options; the caller fills in the prompt and logprobs.
    [[nodiscard]] messages::Generate request() const;
};

// Problems go into `fields`.
void read_openai_options(FieldReader& fields, OpenAiOptions& options);
// Reads the part that is an object of its own in vLLM's generate. `max_new_tokens` is unchanged
// without max_tokens, and `routes.start` without routed_experts_prompt_start. `served`: a field
// that other routes refuse; the caller reads it.
void read_openai_sampling(
    FieldReader& fields, OpenAiOptions& options, std::string_view served = {}
);

// Checks the numbers of tokens, by the caller's names: `longest` is the name of the maximum.
// messages::invalid() checks the engine's limits.
void check_lengths(
    FieldReader& fields, std::string_view longest, const messages::SamplingParams& params
);

// Checks that a number of top logprobs is in the range that `accepted` describes, or kAllLogprobs.
inline constexpr std::int64_t kAllLogprobs = -1;  // vLLM's word for the whole vocabulary
void check_top_logprobs(
    FieldReader& fields, std::string_view name, const std::optional<std::int64_t>& num
);

inline constexpr std::int64_t kOpenAiSamplesMax = 1024;

}  // namespace pitstop::http
