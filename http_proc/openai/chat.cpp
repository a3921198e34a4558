// OpenAI's /v1/chat/completions, with the extras of SGLang and vLLM. The prompt is what the model's
// chat template makes of the messages (tokenizer_proc/chat_template.h). Calls of tools are parsed
// out of what the model writes where --tool-call-parser names its format (tool_calls.h).
#include "http_proc/format/tool_calls.h"
#include "http_proc/format/versions.h"
#include "http_proc/generation/event_stream.h"
#include "http_proc/generation/generation.h"
#include "http_proc/generation/prompts.h"
#include "http_proc/openai/chat_request.h"
#include "http_proc/openai/choice.h"
#include "http_proc/openai/routes.h"
#include "http_proc/server/errors.h"
#include "messages/chunks.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

namespace pitstop {
namespace {

struct Choice {
    std::vector<Span> spans{};
    Usage usage{};
    bool has_begun = false;                 // its role was sent
    std::optional<ToolCallParser> tools{};  // null: what it writes is text
    std::int64_t num_calls = 0;             // told so far
};

struct Answer {
    OpenAiOptions options{};
    LogprobOptions logprobs{};
    bool has_logprobs = false;
    std::string id{};
    std::string model{};
    std::int64_t created = 0;
    std::vector<TokenId> prompt_ids{};
    std::optional<ToolFormat> tool_format{};  // of calls to look for
    std::vector<Choice> choices{};
    const TokenTexts* texts = nullptr;
    std::vector<TokenId> eos_ids{};
};

Response refusal(const Error& error) {
    // A rid in use is the caller's mistake, and so is a chat for a model without a template for it.
    const bool is_callers =
        error.code == ErrorCode::kAlreadyExists || error.code == ErrorCode::kUnsupported;
    const int status = is_callers ? 400 : status_of(error.code);
    return error_response(Dialect::kOpenAi, status, error.message);
}

void write_head(JsonWriter& json, const Answer& answer, std::string_view object) {
    json.begin_object().key("id").string(answer.id).key("object").string(object);
    json.key("created").integer(answer.created).key("model").string(answer.model);
}

void write_token(JsonWriter& json, const Answer& answer, TokenId id, float logprob) {
    const TokenNames names(answer.texts, answer.options.shows_tokens_as_ids);
    const std::string name = names.of(id);
    json.key("token").string(name).key("logprob").logprob(logprob).key("bytes").begin_array();
    for (const char c : name) json.integer(static_cast<unsigned char>(c));
    json.end_array();
}

void write_logprobs(JsonWriter& json, const Answer& answer, const OutputChunk& chunk) {
    json.key("logprobs");
    if (!answer.has_logprobs) {
        json.null();
        return;
    }
    json.begin_object().key("content").begin_array();
    for (std::size_t i = 0; i < chunk.tokens.size(); ++i) {
        const TokenLogprob position = output_logprob(chunk, i, answer.logprobs);
        json.begin_object();
        write_token(json, answer, position.id, *position.logprob);
        json.key("top_logprobs").begin_array();
        for (std::size_t k = 0; k < position.top_ids.size(); ++k) {
            json.begin_object();
            write_token(json, answer, position.top_ids[k], position.top_logprobs[k]);
            json.end_object();
        }
        json.end_array().end_object();
    }
    json.end_array().end_object();
}

// What a chunk says: its text, or what is told of it where calls are looked for.
ToolCallParser::Part told(Choice& choice, OutputChunk& chunk) {
    if (!choice.tools) return {.text = std::move(chunk.text)};
    ToolCallParser::Part part = choice.tools->add(chunk.text);
    if (!chunk.finish) return part;
    ToolCallParser::Part last = choice.tools->finish();
    part.text += last.text;
    std::ranges::move(last.calls, std::back_inserter(part.calls));
    return part;
}

// Mistral's template takes back nine letters and digits, the others any id.
std::string call_id(ToolFormat format) {
    if (format == ToolFormat::kMistral) return Tree::random_id().substr(0, 9);
    return "call_" + Tree::random_id().substr(0, 24);
}

// The members of a message or of a delta. A message always has content, if only null.
void write_part(JsonWriter& json, const Answer& answer, Choice& choice, ToolCallParser::Part part) {
    if (part.calls.empty() || !part.text.empty()) json.key("content").string(part.text);
    if (part.calls.empty()) return;
    json.key("tool_calls").begin_array();
    for (ToolCall& call : part.calls) {
        json.begin_object().key("index").integer(choice.num_calls++);
        json.key("id").string(call_id(*answer.tool_format)).key("type").string("function");
        json.key("function").begin_object().key("name").string(call.name);
        json.key("arguments").string(call.arguments).end_object().end_object();
    }
    json.end_array();
}

// What follows the message or the delta of a choice.
void write_rest_of_choice(JsonWriter& json, Answer& answer, Choice& choice, OutputChunk& chunk) {
    write_logprobs(json, answer, chunk);
    const bool has_calls = choice.tools && choice.tools->has_calls();
    write_finish(
        json,
        chunk.finish ? &*chunk.finish : nullptr,
        answer.eos_ids,
        has_calls ? "tool_calls" : "stop"
    );
    if (answer.options.wants_token_ids) json.key("token_ids").ids(chunk.tokens);
    append_spans(choice.spans, std::move(chunk.spans));
    if (chunk.finish) {
        json.key("weight_versions");
        write_weight_versions(json, choice.spans);
    }
    json.end_object();
}

void write_prompt(JsonWriter& json, const Answer& answer, const PromptLogprobs* prompt) {
    if (answer.options.wants_token_ids) json.key("prompt_token_ids").ids(answer.prompt_ids);
    if (!answer.options.prompt_logprobs) return;
    json.key("prompt_logprobs");
    const PromptLogprobs none;
    write_prompt_logprobs(
        json,
        prompt != nullptr ? *prompt : none,
        answer.prompt_ids,
        answer.logprobs,
        TokenNames(answer.texts, answer.options.shows_tokens_as_ids)
    );
}

// The prompt's tokens count once, however many samples it has.
Usage usage_of(const Answer& answer) {
    Usage sum = answer.choices.front().usage;
    for (std::size_t i = 1; i < answer.choices.size(); ++i)
        sum.completion_tokens += answer.choices[i].usage.completion_tokens;
    return sum;
}

Task<Response> answer_whole(Generation& generation, Answer& answer) {
    Result<std::vector<OutputChunk>> outputs = co_await collect(generation);
    if (!outputs) co_return refusal(outputs.error());
    JsonWriter json;
    write_head(json, answer, "chat.completion");
    json.key("choices").begin_array();
    const std::optional<PromptLogprobs> prompt = outputs->front().prompt;
    for (std::size_t i = 0; i < outputs->size(); ++i) {
        OutputChunk& chunk = (*outputs)[i];
        answer.choices[i].usage.add(chunk);
        json.begin_object().key("index").integer(static_cast<std::int64_t>(i));
        json.key("message").begin_object().key("role").string("assistant");
        ToolCallParser::Part part = told(answer.choices[i], chunk);
        if (part.text.empty() && !part.calls.empty()) json.key("content").null();
        write_part(json, answer, answer.choices[i], std::move(part));
        json.key("refusal").null().end_object();
        write_rest_of_choice(json, answer, answer.choices[i], chunk);
    }
    json.end_array().key("usage");
    write_usage(json, usage_of(answer));
    write_prompt(json, answer, prompt ? &*prompt : nullptr);
    write_metadata(json, answer.choices.front().spans);
    json.end_object();
    co_return Response::json_text(200, json.take());
}

void begin_choice(JsonWriter& json, const Answer& answer, std::size_t index) {
    write_head(json, answer, "chat.completion.chunk");
    json.key("choices").begin_array();
    json.begin_object().key("index").integer(static_cast<std::int64_t>(index));
    json.key("delta").begin_object();
}

// The first event of a choice has its role; of the first choice the prompt, too, of which `chunk`,
// the choice's first, has the logprobs.
void write_first_event(
    JsonWriter& json, const Answer& answer, std::size_t index, const OutputChunk& chunk
) {
    begin_choice(json, answer, index);
    json.key("role").string("assistant").key("content").string("").end_object();
    json.key("logprobs").null().key("finish_reason").null().end_object().end_array();
    if (index == 0) write_prompt(json, answer, chunk.prompt ? &*chunk.prompt : nullptr);
    write_event_usage(json, answer.options, answer.choices[index].usage);
    json.end_object();
}

void write_event(JsonWriter& json, Answer& answer, std::size_t index, OutputChunk chunk) {
    Choice& choice = answer.choices[index];
    begin_choice(json, answer, index);
    write_part(json, answer, choice, told(choice, chunk));
    json.end_object();
    write_rest_of_choice(json, answer, choice, chunk);
    json.end_array();
    write_event_usage(json, answer.options, choice.usage);
    if (chunk.finish && index == 0) write_metadata(json, choice.spans);
    json.end_object();
}

Task<Response> answer_streamed(Exchange& exchange, Generation& generation, Answer& answer) {
    EventStream stream(exchange);
    while (auto event = co_await generation.next()) {
        if (const auto error = error_of(event->chunk)) {
            if (!stream.has_begun()) co_return refusal(*error);
            stream.add_error(Dialect::kOpenAi, *error);
            break;
        }
        Choice& choice = answer.choices[event->index];
        choice.usage.add(event->chunk);
        if (!std::exchange(choice.has_begun, true)) {
            write_first_event(stream.begin_event(), answer, event->index, event->chunk);
            stream.end_event();
        }
        write_event(stream.begin_event(), answer, event->index, std::move(event->chunk));
        stream.end_event();
        if (!co_await stream.send(generation.has_more_now())) co_return Response::streamed();
    }
    if (answer.options.wants_usage) {
        JsonWriter& json = stream.begin_event();
        write_head(json, answer, "chat.completion.chunk");
        write_last_usage(json, usage_of(answer));
        stream.end_event();
    }
    co_await stream.end();
    co_return Response::streamed();
}

LogprobOptions logprob_options(const OpenAiChat& call) {
    const OpenAiOptions& options = call.options;
    LogprobOptions logprobs;
    logprobs.mode = options.logprobs_mode;
    logprobs.enabled = call.has_logprobs || options.prompt_logprobs;
    logprobs.top = std::max(call.top_logprobs, options.prompt_logprobs.value_or(0));
    if (options.prompt_logprobs) logprobs.prompt_start = 0;
    return logprobs;
}

// Fills `answer` and returns the engine's requests, a sample each.
Task<Result<std::vector<Generate>>> prepare(Exchange& exchange, OpenAiChat call, Answer& answer) {
    if (answer.logprobs.enabled && !call.options.shows_tokens_as_ids) {
        const Result<> loaded = co_await exchange.tree().token_texts().load(exchange.tree());
        if (!loaded) co_return loaded.error();
        answer.texts = &exchange.tree().token_texts();
    }
    if (call.input_ids) {
        answer.prompt_ids = *call.input_ids;
    } else {
        Result<TokenizeReply> prompt = co_await ask(exchange, call.chat.question());
        if (!prompt) co_return prompt.error();
        answer.prompt_ids = std::move(prompt->ids);
    }
    Generate request = call.options.request();
    request.input_ids = answer.prompt_ids;
    request.logprobs = answer.logprobs;
    // Some models' markers of calls are special tokens.
    if (answer.tool_format) request.sampling.skip_special_tokens = false;
    const Result<> held = exchange.hold(request, {.num_copies = call.options.n, .num_kept = 1});
    if (!held) co_return held.error();
    std::vector<Generate> requests;
    for (std::int64_t sample = 0; sample < call.options.n; ++sample) {
        request.rid = fmt::format("{}-{}", answer.id, sample);
        // Samples that shared a seed would all be the same.
        if (sample > 0 && request.sampling.seed) ++*request.sampling.seed;
        requests.push_back(request);
    }
    answer.choices.resize(requests.size());
    for (Choice& choice : answer.choices) {
        if (answer.tool_format) choice.tools.emplace(*answer.tool_format);
    }
    co_return requests;
}

Task<Response> chat_completions(Exchange& exchange) {
    const Request& request = exchange.request();
    if (!is_json(request)) {
        co_return error_response(
            Dialect::kOpenAi, 400, "the content type of a request is application/json"
        );
    }
    Result<OpenAiChat> call = parse_openai_chat(request.body);
    if (!call) co_return refusal(call.error());
    const HelloReply& hello = exchange.tree().hello();
    const std::string caller = name_of_caller(request, call->options.id);
    Answer answer;
    answer.options = call->options;
    answer.logprobs = logprob_options(*call);
    answer.has_logprobs = call->has_logprobs;
    answer.id = "chatcmpl-" + caller;
    answer.model = call->options.model.empty() ? hello.model : call->options.model;
    answer.created = ServerContext::unix_time();
    answer.eos_ids = hello.eos_ids;
    if (call->has_tools) answer.tool_format = exchange.server().options().tool_format;
    Preparations::Entry preparation = exchange.tree().preparations().begin({answer.id, caller});
    Result<std::vector<Generate>> requests = co_await prepare(exchange, *std::move(call), answer);
    if (!requests) co_return refusal(requests.error());

    Generation generation(exchange);
    generation.start(std::move(preparation), *std::move(requests), {answer.id, caller});
    if (answer.options.is_streamed)
        co_return co_await answer_streamed(exchange, generation, answer);
    co_return co_await answer_whole(generation, answer);
}

}  // namespace

void add_openai_chat(Router& router) {
    router.add(
        {.methods = "POST",
         .path = "/v1/chat/completions",
         .dialect = Dialect::kOpenAi,
         .access = Access::kData,
         .handler = chat_completions}
    );
}

}  // namespace pitstop
