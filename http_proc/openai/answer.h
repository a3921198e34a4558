// The data that answers of the OpenAI family (completions, chat, vLLM's generate) share, and their
// common part of Answering (generation/pipeline.h).
//
// Thread: the server's loop.
#pragma once

#include "http_proc/format/routed_experts.h"
#include "http_proc/generation/pipeline.h"
#include "http_proc/openai/choice.h"
#include "http_proc/openai/options.h"

#include <cstddef>
#include <cstdint>
#include <optional>
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
    bool is_held = false;  // the output matches a grammar
    std::vector<TokenId> eos_ids{};
    std::vector<std::string> names{};
    std::vector<Prompt> prompts{};
    const TokenTexts* texts = nullptr;
    std::optional<messages::RouteShape> route_shape{};  // the model's
    struct ChoiceRoutes {
        RoutesOutput rows;
        Usage usage{};
    };
    std::vector<ChoiceRoutes> routes{};  // by choice

    // Makes the answer's id: `prefix`, then the caller's name for the request.
    OpenAiAnswer(Exchange& exchange, OpenAiOptions options, std::string_view prefix);

    [[nodiscard]] bool is_streamed() const { return options.is_streamed; }
    [[nodiscard]] const std::string& named_model() const { return options.model; }
    [[nodiscard]] bool wants_texts() const {
        return logprobs.asked.enabled && !options.shows_tokens_as_ids;
    }
    [[nodiscard]] TokenNames token_names() const { return {texts, options.shows_tokens_as_ids}; }
    [[nodiscard]] std::string rid_of(std::size_t index) const;
    // Returns a prompt with these options; the caller fills in its text or tokens.
    [[nodiscard]] Prompt prompt() const;

    // Writes the first members of the answer's object.
    void write_head(JsonWriter& json, std::string_view object) const;
    // Adds a choice to `routes`.
    void add_routes() { routes.push_back({.rows = RoutesOutput(options.routes, route_shape)}); }
    // Moves the chunk's routes to its choice.
    void take_routes(std::size_t index, messages::OutputChunk& chunk);
    // Writes routes as members of a choice, unless they have SGLang's form.
    void write_choice_routes(JsonWriter& json, std::size_t index, bool is_last);
    // Writes the answer's "sglext", which has the routes if they have SGLang's form.
    void write_sglext(JsonWriter& json, std::size_t index, bool is_last);

    // Writes the last event of a stream, which has only the usage, if that was requested.
    void write_usage_event(EventStream& stream, std::string_view object, const Usage& usage) const;
};

// Returns the logprobs to request. `is_enabled`: a field of the route requests logprobs of output
// tokens, and those of the `top` most probable tokens per position; -1: the whole vocabulary.
[[nodiscard]] ShownLogprobs shown_logprobs(
    const OpenAiOptions& options, bool is_enabled, std::int64_t top, std::int64_t vocab_size
);

// Completes `options.routes` with the server's --return-routed-experts. Errors: kInvalidArgument:
// several choices in SGLang's form, or streamed routes but no routes.
[[nodiscard]] Result<> finish_routes(
    const Exchange& exchange, std::int64_t num_choices, OpenAiOptions& options
);

// Answers an error as OpenAI's routes do: a rid in use is the caller's mistake.
[[nodiscard]] Response openai_refusal(const Error& error);

}  // namespace pitstop::http
