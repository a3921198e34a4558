// OpenAI's /v1/completions, with the extras of SGLang and vLLM.
#include "http_proc/format/versions.h"
#include "http_proc/generation/event_stream.h"
#include "http_proc/generation/generation.h"
#include "http_proc/generation/prompts.h"
#include "http_proc/openai/choice.h"
#include "http_proc/openai/completions_request.h"
#include "http_proc/openai/routes.h"
#include "http_proc/server/errors.h"
#include "messages/chunks.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace pitstop {
namespace {

struct Choice {
    LogprobOptions logprobs{};
    std::vector<TokenId> prompt_ids{};  // where they are shown
    std::string echo{};                 // the prompt's text, where it is shown
    std::size_t prompt = 0;             // which one it continues
    std::int64_t offset = 0;            // characters so far
    std::vector<Span> spans{};
    Usage usage{};
    bool is_first = true;  // nothing of it was written yet
};

struct Completion {
    OpenAiOptions options{};
    bool has_logprobs = false;
    bool is_echoed = false;
    std::string id{};
    std::string model{};
    std::int64_t created = 0;
    std::vector<Choice> choices{};
    const TokenTexts* texts = nullptr;
    std::vector<TokenId> eos_ids{};
};

Response refusal(const Error& error) {
    // A rid in use is the caller's mistake.
    const int status = error.code == ErrorCode::kAlreadyExists ? 400 : status_of(error.code);
    return error_response(Dialect::kOpenAi, status, error.message);
}

void write_choice(JsonWriter& json, Completion& completion, std::size_t index, OutputChunk chunk) {
    Choice& choice = completion.choices[index];
    const OpenAiOptions& options = completion.options;
    const TokenNames names(completion.texts, options.shows_tokens_as_ids);
    json.begin_object().key("index").integer(static_cast<std::int64_t>(index));
    std::string text = choice.is_first ? std::exchange(choice.echo, {}) : std::string();
    json.key("text").string(text += chunk.text);
    json.key("logprobs");
    if (completion.has_logprobs) {
        CompletionLogprobs logprobs(names, choice.offset);
        if (completion.is_echoed && choice.is_first) {
            const PromptLogprobs none;
            for (std::size_t i = 0; i < choice.prompt_ids.size(); ++i) {
                logprobs.add(prompt_logprob(
                    chunk.prompt ? *chunk.prompt : none, choice.prompt_ids, i, choice.logprobs
                ));
            }
        }
        for (std::size_t i = 0; i < chunk.tokens.size(); ++i)
            logprobs.add(output_logprob(chunk, i, choice.logprobs));
        logprobs.write(json);
        choice.offset = logprobs.offset();
    } else {
        json.null();
    }
    write_finish(json, chunk.finish ? &*chunk.finish : nullptr, completion.eos_ids);
    if (options.wants_token_ids) {
        json.key("token_ids").ids(chunk.tokens);
        if (choice.is_first) json.key("prompt_token_ids").ids(choice.prompt_ids);
    }
    if (options.prompt_logprobs && choice.is_first) {
        json.key("prompt_logprobs");
        const PromptLogprobs none;
        write_prompt_logprobs(
            json, chunk.prompt ? *chunk.prompt : none, choice.prompt_ids, choice.logprobs, names
        );
    }
    append_spans(choice.spans, std::move(chunk.spans));
    if (chunk.finish) {
        json.key("weight_versions");
        write_weight_versions(json, choice.spans);
    }
    choice.is_first = false;
    json.end_object();
}

void write_head(JsonWriter& json, const Completion& completion) {
    json.begin_object().key("id").string(completion.id);
    json.key("object").string("text_completion");
    json.key("created").integer(completion.created).key("model").string(completion.model);
}

// A prompt's tokens count once, however many samples it has.
Usage usage_of(const Completion& completion) {
    Usage sum;
    std::size_t prompt = completion.choices.size();
    for (const Choice& choice : completion.choices) {
        sum.completion_tokens += choice.usage.completion_tokens;
        if (choice.prompt == prompt) continue;
        prompt = choice.prompt;
        sum.prompt_tokens += choice.usage.prompt_tokens;
        sum.cached_tokens += choice.usage.cached_tokens;
    }
    return sum;
}

Task<Response> answer_whole(Generation& generation, Completion& completion) {
    const Result<std::vector<OutputChunk>> outputs = co_await collect(generation);
    if (!outputs) co_return refusal(outputs.error());
    JsonWriter json;
    write_head(json, completion);
    json.key("choices").begin_array();
    for (std::size_t i = 0; i < outputs->size(); ++i) {
        completion.choices[i].usage.add((*outputs)[i]);
        write_choice(json, completion, i, (*outputs)[i]);
    }
    json.end_array().key("usage");
    write_usage(json, usage_of(completion));
    write_metadata(json, completion.choices.front().spans);
    json.end_object();
    co_return Response::json_text(200, json.take());
}

void write_event(JsonWriter& json, Completion& completion, Generation::Event event) {
    const Choice& choice = completion.choices[event.index];
    const bool is_last = event.chunk.finish.has_value();
    write_head(json, completion);
    json.key("choices").begin_array();
    write_choice(json, completion, event.index, std::move(event.chunk));
    json.end_array();
    write_event_usage(json, completion.options, choice.usage);
    if (is_last && event.index == 0) write_metadata(json, choice.spans);
    json.end_object();
}

Task<Response> answer_streamed(Exchange& exchange, Generation& generation, Completion& completion) {
    EventStream stream(exchange);
    while (auto event = co_await generation.next()) {
        if (const auto error = error_of(event->chunk)) {
            if (!stream.has_begun()) co_return refusal(*error);
            stream.add_error(Dialect::kOpenAi, *error);
            break;
        }
        completion.choices[event->index].usage.add(event->chunk);
        write_event(stream.begin_event(), completion, *std::move(event));
        stream.end_event();
        if (!co_await stream.send(generation.has_more_now())) co_return Response::streamed();
    }
    if (completion.options.wants_usage) {
        JsonWriter& json = stream.begin_event();
        write_head(json, completion);
        write_last_usage(json, usage_of(completion));
        stream.end_event();
    }
    co_await stream.end();
    co_return Response::streamed();
}

LogprobOptions logprob_options(const OpenAiCompletions& call) {
    const OpenAiOptions& options = call.options;
    LogprobOptions logprobs;
    logprobs.mode = options.logprobs_mode;
    logprobs.enabled = call.logprobs || options.prompt_logprobs;
    logprobs.top = std::max(call.logprobs.value_or(0), options.prompt_logprobs.value_or(0));
    logprobs.ids = call.logprobs ? options.logprob_ids : std::vector<TokenId>{};
    if (options.prompt_logprobs || (call.is_echoed && call.logprobs)) logprobs.prompt_start = 0;
    return logprobs;
}

// Fills `completion` and returns the engine's requests, a sample each.
Task<Result<std::vector<Generate>>> prepare(
    Exchange& exchange, OpenAiCompletions call, Completion& completion
) {
    const OpenAiOptions& options = call.options;
    const LogprobOptions logprobs = logprob_options(call);
    if (logprobs.enabled && !options.shows_tokens_as_ids) {
        const Result<> loaded = co_await exchange.tree().token_texts().load(exchange.tree());
        if (!loaded) co_return loaded.error();
        completion.texts = &exchange.tree().token_texts();
    }
    std::vector<Generate> requests;
    for (std::size_t p = 0; p < call.prompts.size(); ++p) {
        Generate request = options.request();
        request.text = std::move(call.prompts[p].text);
        request.input_ids = std::move(call.prompts[p].ids);
        request.logprobs = logprobs;
        Choice choice;
        choice.logprobs = logprobs;
        choice.prompt = p;
        if (call.is_echoed && request.text) choice.echo = *request.text;
        if (call.is_echoed && request.input_ids) {
            Result<std::string> text = co_await text_of(exchange, *request.input_ids);
            if (!text) co_return text.error();
            choice.echo = *std::move(text);
        }
        if (options.wants_token_ids || logprobs.prompt_start >= 0) {
            const Result<> tokenized = co_await tokenize_prompt(exchange, request);
            if (!tokenized) co_return tokenized.error();
            choice.prompt_ids = *request.input_ids;
        }
        const bool is_shown = call.is_echoed || !choice.prompt_ids.empty();
        const Result<> held =
            exchange.hold(request, {.num_copies = options.n, .num_kept = is_shown ? options.n : 0});
        if (!held) co_return held.error();
        for (std::int64_t sample = 0; sample < options.n; ++sample) {
            request.rid = fmt::format("{}-{}", completion.id, requests.size());
            // Samples that shared a seed would all be the same.
            if (sample > 0 && request.sampling.seed) ++*request.sampling.seed;
            requests.push_back(request);
            completion.choices.push_back(choice);
        }
    }
    co_return requests;
}

Task<Response> completions(Exchange& exchange) {
    const Request& request = exchange.request();
    if (!is_json(request)) {
        co_return error_response(
            Dialect::kOpenAi, 400, "the content type of a request is application/json"
        );
    }
    Result<OpenAiCompletions> call = parse_openai_completions(request.body);
    if (!call) co_return refusal(call.error());
    const std::string caller = name_of_caller(request, call->options.id);
    Completion completion;
    completion.options = call->options;
    completion.has_logprobs = call->logprobs.has_value();
    completion.is_echoed = call->is_echoed;
    completion.id = "cmpl-" + caller;
    const HelloReply& hello = exchange.tree().hello();
    completion.model = call->options.model.empty() ? hello.model : call->options.model;
    completion.created = ServerContext::unix_time();
    completion.eos_ids = hello.eos_ids;
    const std::string& id = completion.id;
    Preparations::Entry preparation = exchange.tree().preparations().begin({id, caller});
    Result<std::vector<Generate>> requests =
        co_await prepare(exchange, *std::move(call), completion);
    if (!requests) co_return refusal(requests.error());

    Generation generation(exchange);
    generation.start(std::move(preparation), *std::move(requests), {id, caller});
    if (completion.options.is_streamed)
        co_return co_await answer_streamed(exchange, generation, completion);
    co_return co_await answer_whole(generation, completion);
}

}  // namespace

void add_openai_completions(Router& router) {
    router.add(
        {.methods = "POST",
         .path = "/v1/completions",
         .dialect = Dialect::kOpenAi,
         .access = Access::kData,
         .handler = completions}
    );
}

}  // namespace pitstop
