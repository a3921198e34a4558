// Holds what an answer of the OpenAI family (completions, chat, vLLM's generate) is made from,
// whichever of the three it is: the part of generation/pipeline.h's Answering that they share.
//
// Thread: the server's loop.
#pragma once

#include "http_proc/generation/pipeline.h"
#include "http_proc/openai/choice.h"
#include "http_proc/openai/options.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

struct OpenAiAnswer {
    OpenAiOptions options{};
    ShownLogprobs logprobs{};
    std::string answer_id{};
    std::string model{};
    std::int64_t created = 0;
    std::vector<TokenId> eos_ids{};
    std::vector<std::string> names{};
    std::vector<Prompt> prompts{};
    const TokenTexts* texts = nullptr;

    // The answer's id is `prefix` and what the caller names it.
    OpenAiAnswer(Exchange& exchange, OpenAiOptions options, std::string_view prefix);

    [[nodiscard]] bool is_streamed() const { return options.is_streamed; }
    [[nodiscard]] bool wants_texts() const {
        return logprobs.asked.enabled && !options.shows_tokens_as_ids;
    }
    [[nodiscard]] TokenNames token_names() const { return {texts, options.shows_tokens_as_ids}; }
    [[nodiscard]] std::string rid_of(std::size_t index) const;
    // Makes a prompt with the options; its text or tokens are the caller's to fill.
    [[nodiscard]] Prompt prompt() const;

    // Writes the object's first members.
    void write_head(JsonWriter& json, std::string_view object) const;
    // Writes a stream's last event, of usage alone, where it was asked for.
    void write_usage_event(EventStream& stream, std::string_view object, const Usage& usage) const;
};

// If `is_enabled`, the route's own field asks for output tokens' logprobs, with the `top` of them.
// -1 is the whole vocabulary.
[[nodiscard]] ShownLogprobs shown_logprobs(
    const OpenAiOptions& options, bool is_enabled, std::int64_t top, std::int64_t vocab_size
);

// Answers errors as OpenAI's routes do: a rid in use is the caller's mistake.
[[nodiscard]] Response openai_refusal(const Error& error);

}  // namespace pitstop::http
