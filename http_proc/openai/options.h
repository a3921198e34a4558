// Reads what OpenAI's completions, its chat and vLLM's generate have in common: how tokens are
// drawn, how many samples, how the answer comes. The extras of SGLang and vLLM are included.
//
// Source: OpenAI's API reference; protocol.py of SGLang and of vLLM.
#pragma once

#include "http_proc/format/json_body.h"
#include "messages/generation.h"

#include <cstdint>
#include <optional>
#include <string>

namespace pitstop::http {

struct OpenAiOptions {
    std::string model{};  // as given, and given back; empty: the one that is served
    std::string id{};     // the caller's: rid or request_id; empty: none
    messages::SamplingParams sampling{};
    std::int64_t n = 1;
    bool is_streamed = false;
    bool wants_usage = false;         // stream_options.include_usage: at the end of a stream
    bool wants_usage_always = false;  // stream_options.continuous_usage_stats
    bool wants_token_ids = false;
    bool wants_prompt_ids = false;                  // it shows the prompt's, too
    bool shows_tokens_as_ids = false;               // "token_id:7" in place of a token's text
    std::optional<std::int64_t> prompt_logprobs{};  // vLLM's: so many at each prompt token
    std::vector<TokenId> logprob_ids{};             // vLLM's logprob_token_ids
    messages::LogprobsMode logprobs_mode = messages::LogprobsMode::kRaw;
    std::int64_t priority = 0;  // larger first
    std::optional<std::int64_t> replica{};
    messages::KvTolerance kv_tolerance = messages::KvTolerance::kNever;
    std::int64_t kv_max_lag = 0;

    // Makes a request for a prompt with all this; the prompt and logprobs are the caller's to fill.
    [[nodiscard]] messages::Generate request() const;
};

// Problems are left in `fields`.
void read_openai_options(FieldReader& fields, OpenAiOptions& options);
// Reads the part that vLLM's generate has in an object of its own. `max_new_tokens` stays as it is
// where there is no max_tokens.
void read_openai_sampling(FieldReader& fields, OpenAiOptions& options);

// Checks how many tokens are asked for, by the caller's names: `longest` is the one of at most how
// many. messages::invalid() has the engine's.
void check_lengths(
    FieldReader& fields, std::string_view longest, const messages::SamplingParams& params
);

// Checks that a number of top logprobs is one, of those that `accepted` names, or kAllLogprobs.
inline constexpr std::int64_t kAllLogprobs = -1;  // vLLM's word for the whole vocabulary
void check_top_logprobs(
    FieldReader& fields, std::string_view name, const std::optional<std::int64_t>& num
);

inline constexpr std::int64_t kOpenAiSamplesMax = 1024;

}  // namespace pitstop::http
