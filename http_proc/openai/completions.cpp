// Serves OpenAI's /v1/completions, with the extras of SGLang and vLLM.
#include "http_proc/format/versions.h"
#include "http_proc/generation/prompts.h"
#include "http_proc/generation/request_checks.h"
#include "http_proc/openai/answer.h"
#include "http_proc/openai/completions_request.h"
#include "http_proc/openai/routes.h"
#include "http_proc/openai/text_offsets.h"

#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

constexpr std::string_view kObject = "text_completion";

struct CompletionChoice {
    std::vector<TokenId> prompt_ids{};  // only if the answer shows them
    std::string echo{};                 // the prompt's text, if the answer shows it
    PromptText::From echo_from = PromptText::From::kCaller;
    std::size_t prompt = 0;  // index of the prompt that it continues
    TextOffsets offsets{};   // of its tokens in its text
    std::vector<messages::Span> spans{};
    Usage usage{};
    bool is_first = true;  // nothing of this choice has been written yet
};

struct Completion : OpenAiAnswer {
    static constexpr Dialect kDialect = Dialect::kOpenAi;

    bool has_logprobs = false;
    bool is_echoed = false;
    std::string echo{};  // the text of the prompt whose samples come next
    PromptText::From echo_from = PromptText::From::kCaller;  // source of the echoed text
    std::vector<CompletionChoice> choices{};

    Completion(Exchange& exchange, const OpenAiCompletions& call)
        : OpenAiAnswer(exchange, call.options, "cmpl-"),
          has_logprobs(call.logprobs.has_value()),
          is_echoed(call.is_echoed) {}

    static Result<Completion> parse(Exchange& exchange);
    static Response refusal(const Error& error) { return openai_refusal(error); }
    // Offsets count the characters of texts, even if tokens are shown by their ids.
    [[nodiscard]] bool wants_texts() const { return has_logprobs || OpenAiAnswer::wants_texts(); }
    bool shows_prompt_ids() const {
        return options.wants_prompt_ids || logprobs.asked.prompt_start;
    }
    Task<Result<>> complete(Exchange& exchange, Prompt& prompt);
    void add_sample(std::size_t prompt, const messages::Generate& request);

    bool handle_event(Generation::Event& event) {
        choices[event.index].usage.add(event.chunk);
        take_routes(event.index, event.chunk);
        return true;
    }
    void write_events(EventStream& stream, Generation::Event event);
    void write_end(EventStream& stream) const { write_usage_event(stream, kObject, usage()); }
    void write_whole(JsonWriter& json, std::vector<messages::OutputChunk>& outputs);

    void write_choice(JsonWriter& json, std::size_t index, messages::OutputChunk& chunk);
    void write_logprobs(
        JsonWriter& json,
        CompletionChoice& choice,
        std::string_view echoed,
        const messages::OutputChunk& chunk
    ) const;
    // Counts a prompt's tokens once, however many samples it has.
    Usage usage() const;
};

Result<Completion> Completion::parse(Exchange& exchange) {
    RETURN_IF_ERROR(check_is_json(exchange.request()));
    ASSIGN_OR_RETURN(OpenAiCompletions call, parse_openai_completions(exchange.request().body));
    for (OpenAiPrompt& given : call.prompts)
        RETURN_IF_ERROR(read_adapter_of(exchange, call.options.model, given.adapter));
    const auto num_prompts = static_cast<std::int64_t>(call.prompts.size());
    RETURN_IF_ERROR(finish_routes(exchange, num_prompts * call.options.n, call.options));
    if (!call.logprobs)
        RETURN_IF_ERROR(check_tokens(exchange, "logprob_token_ids", call.options.logprob_ids));
    Completion answer(exchange, call);
    const OpenAiOptions& options = answer.options;
    answer.logprobs = shown_logprobs(
        options, answer.has_logprobs, call.logprobs.value_or(0), exchange.tree().hello().vocab_size
    );
    if (call.logprobs) answer.logprobs.asked.ids = options.logprob_ids;
    if (call.is_echoed && call.logprobs) answer.logprobs.asked.prompt_start = 0;
    for (OpenAiPrompt& given : call.prompts) {
        Prompt prompt = answer.prompt();
        if (call.is_echoed || answer.shows_prompt_ids()) prompt.num_kept = options.n;
        prompt.request.text = std::move(given.text);
        prompt.request.input_ids = std::move(given.ids);
        prompt.request.adapter = std::move(given.adapter);
        answer.prompts.push_back(std::move(prompt));
    }
    return answer;
}

Task<Result<>> Completion::complete(Exchange& exchange, Prompt& prompt) {
    messages::Generate& request = prompt.request;
    echo_from = request.text ? PromptText::From::kCaller : PromptText::From::kTokens;
    if (is_echoed && request.text) echo = *request.text;
    if (is_echoed && request.input_ids) {
        Result<std::string> text = co_await text_of(exchange, *request.input_ids);
        if (!text) co_return text.error();
        echo = *std::move(text);
    }
    if (!shows_prompt_ids()) co_return Ok{};
    co_return co_await tokenize_prompt(exchange, request);
}

void Completion::add_sample(std::size_t prompt, const messages::Generate& request) {
    add_routes();
    CompletionChoice& choice = choices.emplace_back();
    choice.prompt = prompt;
    choice.echo = echo;
    choice.echo_from = echo_from;
    if (shows_prompt_ids()) choice.prompt_ids = *request.input_ids;
}

// Writes the logprobs of the prompt and the chunk. `echo`: the prompt's text if it is echoed.
void Completion::write_logprobs(
    JsonWriter& json,
    CompletionChoice& choice,
    std::string_view echoed,
    const messages::OutputChunk& chunk
) const {
    CompletionLogprobs written(token_names());
    if (is_echoed && choice.is_first) {
        const messages::PromptLogprobs none;
        PromptText prompt(echoed, choice.echo_from, *texts);
        for (std::size_t i = 0; i < choice.prompt_ids.size(); ++i) {
            const TokenLogprob position = prompt_logprob(
                chunk.prompt ? *chunk.prompt : none,
                choice.prompt_ids,
                i,
                logprobs.asked,
                logprobs.output_top
            );
            written.add(position, choice.offsets.next(prompt.next(position.id)));
        }
    }
    for (std::size_t i = 0; i < chunk.tokens.size(); ++i) {
        const TokenId id = chunk.tokens[i];
        const bool is_left_out = options.sampling.skip_special_tokens && texts->is_special(id);
        const std::string_view bytes = is_left_out ? std::string_view() : texts->bytes_of(id);
        written.add(output_logprob(chunk, i, logprobs), choice.offsets.next(bytes));
    }
    written.write(json);
}

void Completion::write_choice(JsonWriter& json, std::size_t index, messages::OutputChunk& chunk) {
    CompletionChoice& choice = choices[index];
    json.begin_object().key("index").integer(static_cast<std::int64_t>(index));
    const std::string echoed = std::exchange(choice.echo, {});
    json.key("text").string(echoed + chunk.text);
    json.key("logprobs");
    if (has_logprobs) {
        write_logprobs(json, choice, echoed, chunk);
        write_logprobs_mode(json, options, is_held);
    } else {
        json.null();
    }
    write_finish(json, chunk.finish ? &*chunk.finish : nullptr, eos_ids);
    if (options.wants_token_ids) json.key("token_ids").ids(chunk.tokens);
    if (options.wants_prompt_ids && choice.is_first)
        json.key("prompt_token_ids").ids(choice.prompt_ids);
    if (options.prompt_logprobs && choice.is_first) {
        json.key("prompt_logprobs");
        const messages::PromptLogprobs none;
        write_prompt_logprobs(
            json, chunk.prompt ? *chunk.prompt : none, choice.prompt_ids, logprobs, token_names()
        );
    }
    append_spans(choice.spans, std::move(chunk.spans));
    if (chunk.finish) {
        json.key("weight_versions");
        write_weight_versions(json, choice.spans);
    }
    write_choice_routes(json, index, chunk.finish.has_value());
    choice.is_first = false;
    json.end_object();
}

Usage Completion::usage() const {
    Usage sum;
    std::size_t prompt = choices.size();
    for (const CompletionChoice& choice : choices) {
        sum.completion_tokens += choice.usage.completion_tokens;
        if (choice.prompt == prompt) continue;
        prompt = choice.prompt;
        sum.prompt_tokens += choice.usage.prompt_tokens;
        sum.cached_tokens += choice.usage.cached_tokens;
        sum.replayed_tokens += choice.usage.replayed_tokens;
    }
    return sum;
}
void Completion::write_whole(JsonWriter& json, std::vector<messages::OutputChunk>& outputs) {
    write_head(json, kObject);
    json.key("choices").begin_array();
    for (std::size_t i = 0; i < outputs.size(); ++i) write_choice(json, i, outputs[i]);
    json.end_array().key("usage");
    write_usage(json, usage());
    write_versions(json, choices.front().spans);
    write_sglext(json, 0, /*is_last=*/true);
    json.end_object();
}

void Completion::write_events(EventStream& stream, Generation::Event event) {
    const CompletionChoice& choice = choices[event.index];
    const bool is_last = event.chunk.finish.has_value();
    JsonWriter& json = stream.begin_event();
    write_head(json, kObject);
    json.key("choices").begin_array();
    write_choice(json, event.index, event.chunk);
    json.end_array();
    write_event_usage(json, options, choice.usage);
    if (is_last && event.index == 0) write_versions(json, choice.spans);
    write_sglext(json, event.index, is_last);
    json.end_object();
    stream.end_event();
}

}  // namespace

void add_openai_completions(Router& router) {
    router.add(Dialect::kOpenAi, Access::kData, {{"POST", "/v1/completions", serve<Completion>}});
}

}  // namespace pitstop::http
