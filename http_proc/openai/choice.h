// Writes the parts that OpenAI's and vLLM's answers share: logprobs, finish reasons, usage,
// weight versions.
#pragma once

#include "http_proc/format/json_writer.h"
#include "http_proc/format/usage.h"
#include "http_proc/openai/options.h"
#include "http_proc/server/token_texts.h"
#include "messages/generation.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::http {

// The logprobs to request from the tree, and the number of top tokens that each part shows.
struct ShownLogprobs {
    messages::LogprobOptions asked{};
    std::int64_t output_top = 0;
    std::int64_t prompt_top = 0;
    std::size_t num_hidden_ids = 0;  // how many ids at the end of asked.ids are in no list
};

// One position: a token, and the most probable tokens there.
struct TokenLogprob {
    TokenId id{};
    std::optional<float> logprob{};      // absent for the first token of a prompt
    std::optional<std::int64_t> rank{};  // its place in the vocabulary by probability, from 1
    std::span<const TokenId> top_ids{};
    std::span<const float> top_logprobs{};
    std::span<const TokenId> asked_ids{};  // logprob_token_ids
    std::span<const float> asked_logprobs{};
};

// Returns position `i` of a chunk's output. REQUIRES: `shown` was requested, and enabled.
[[nodiscard]] TokenLogprob output_logprob(
    const messages::OutputChunk& chunk, std::size_t i, const ShownLogprobs& shown
);
// Returns prompt token `i` with `num_top` of its top tokens. The result has no logprob if none was
// computed.
[[nodiscard]] TokenLogprob prompt_logprob(
    const messages::PromptLogprobs& prompt,
    std::span<const TokenId> ids,
    std::size_t i,
    const messages::LogprobOptions& options,
    std::int64_t num_top
);

// Names tokens: by their text, or as "token_id:7".
class TokenNames {
  public:
    TokenNames(const TokenTexts* texts, bool as_ids) : texts_(as_ids ? nullptr : texts) {}
    [[nodiscard]] std::string of(TokenId id) const;
    // Returns the bytes of the text, which may be part of a character: clients join them.
    [[nodiscard]] std::string bytes_of(TokenId id) const;

  private:
    const TokenTexts* texts_;
};

// Writes {"tokens", "token_logprobs", "top_logprobs", "text_offset"} of /v1/completions.
class CompletionLogprobs {
  public:
    explicit CompletionLogprobs(TokenNames names) : names_(names) {}
    // Adds a token; `offset` is the place of its first character in the text.
    void add(const TokenLogprob& position, std::int64_t offset);
    void write(JsonWriter& json) const;

  private:
    TokenNames names_;
    JsonWriter tokens_{};
    JsonWriter logprobs_{};
    JsonWriter top_{};
    JsonWriter offsets_{};
};

// Writes the entries of an output's logprobs as in chats and responses, without the brackets of the
// list: {"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}]}. With
// logprob_token_ids, as in vLLM, "top_logprobs" has the sampled token and the named tokens instead.
void write_logprob_entries(
    JsonWriter& json,
    const messages::OutputChunk& chunk,
    const ShownLogprobs& shown,
    const TokenNames& names
);

// Writes the distribution of the logprobs, if the caller has named one or a grammar makes the
// distributions differ.
void write_logprobs_mode(JsonWriter& json, const OpenAiOptions& options, bool has_grammar);

// Writes vLLM's prompt_logprobs: null, then {"7": {"logprob", "rank", "decoded_token"}} per token.
void write_prompt_logprobs(
    JsonWriter& json,
    const messages::PromptLogprobs& prompt,
    std::span<const TokenId> ids,
    const ShownLogprobs& shown,
    const TokenNames& names
);

// Writes "finish_reason", and the matched stop under SGLang's and vLLM's names. `stop`: the reason
// to report for a stop.
void write_finish(
    JsonWriter& json,
    const messages::Finish* finish,
    std::span<const TokenId> eos_ids,
    std::string_view stop = "stop"
);

// Writes {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}.
void write_usage(JsonWriter& json, const Usage& usage);
// Ends a stream's event after its choices: writes the usage so far, null, or nothing.
void write_event_usage(JsonWriter& json, const OpenAiOptions& options, const Usage& usage);
// Writes the members of a stream's last event after its head: no choices, and the usage.
void write_last_usage(JsonWriter& json, const Usage& usage);

// Writes the weight versions of an answer: SGLang's "metadata", in which OpenAI's clients accept
// only texts, and the members of write_version_members().
void write_versions(JsonWriter& json, std::span<const messages::Span> spans);

}  // namespace pitstop::http
