// Serves OpenAI's /v1/responses and /v1/responses/input_tokens. The model's chat template makes the
// prompt from the items; the output is a chat's, as in /v1/chat/completions. The server keeps no
// responses: each request contains its whole conversation.
#include "http_proc/generation/chat_answer.h"
#include "http_proc/generation/request_checks.h"
#include "http_proc/generation/turn_prompt.h"
#include "http_proc/openai/answer.h"
#include "http_proc/openai/response_output.h"
#include "http_proc/openai/responses_request.h"
#include "http_proc/openai/routes.h"
#include "http_proc/server/errors.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

// A response's status, and why it is incomplete or failed.
struct Standing {
    std::string_view status{};
    std::string_view why{};    // for "incomplete"
    std::string_view error{};  // for "failed"
};

Standing standing_of(const messages::Finish* finish, bool is_cut_short) {
    using messages::FinishReason;
    if (finish == nullptr || finish->reason == FinishReason::kStop || is_cut_short)
        return {.status = "completed"};
    if (finish->reason == FinishReason::kLength)
        return {.status = "incomplete", .why = "max_output_tokens"};
    // OpenAI's API has no reason for an abort, but an aborted output must not look complete.
    return {.status = "incomplete", .why = "abort"};
}

struct ResponseAnswer : ChatAnswer {
    static constexpr Dialect kDialect = Dialect::kOpenAi;

    std::vector<std::pair<std::string_view, std::string>> shown{};  // the answer repeats these
    bool has_begun = false;  // whether a stream's first event was written
    std::int64_t next_event = 0;
    ResponseOutput output{};
    ShownLogprobs logprobs{};

    ResponseAnswer(Exchange& exchange, OpenAiResponses given)
        : ChatAnswer(exchange, std::move(given.call), "resp_"), shown(std::move(given.shown)) {
        for (const auto& [name, json] : shown) prompts.front().kept_bytes += json.size();
        if (!given.top_logprobs) return;
        messages::LogprobOptions& asked = prompts.front().request.logprobs;
        const bool is_all = *given.top_logprobs == kAllLogprobs;
        asked.enabled = true;
        asked.top = is_all ? exchange.tree().hello().vocab_size : *given.top_logprobs;
        logprobs = {.asked = asked, .output_top = asked.top};
    }
    [[nodiscard]] bool wants_texts() const {
        return logprobs.asked.enabled || ChatAnswer::wants_texts();
    }

    static Result<ResponseAnswer> parse(Exchange& exchange) {
        RETURN_IF_ERROR(check_is_json(exchange.request()));
        const bool reads_calls = exchange.server().formats().calls.has_value();
        ASSIGN_OR_RETURN(
            OpenAiResponses given, parse_openai_responses(exchange.request().body, reads_calls)
        );
        RETURN_IF_ERROR(read_adapter_of(exchange, given.call.model, given.call.request.adapter));
        const std::optional<ThinkingFormat>& thinking = exchange.server().formats().thinking;
        RETURN_IF_ERROR(check_thinking(given.call.thinking, thinking));
        if (given.top_logprobs && thinking) {
            return make_error(
                ErrorCode::kInvalidArgument,
                "include: message.output_text.logprobs is not supported by a server that separates "
                "thinking; /v1/chat/completions returns the logprobs of every token"
            );
        }
        ResponseAnswer answer(exchange, std::move(given));
        RETURN_IF_ERROR(answer.hold_calls(exchange));
        return answer;
    }
    static Response refusal(const Error& error) {
        return error_response(kDialect, status_of_chat(error.code), error);
    }
    void write_events(EventStream& stream, Generation::Event event);
    void write_error(EventStream& stream, const Error& error);
    void write_whole(JsonWriter& json, std::vector<messages::OutputChunk>& outputs);

    [[nodiscard]] std::string logprobs_of(const messages::OutputChunk& chunk) const;
    Standing end(const messages::Finish* finish, ResponseEvents* events);
    void write_response(JsonWriter& json, const Standing& standing) const;
    void write_usage(JsonWriter& json) const;
    void tell(ResponseEvents& events, std::string_view type, const Standing& standing) const;
};

// Returns the logprobs of the chunk's tokens, as JSON objects separated by commas.
std::string ResponseAnswer::logprobs_of(const messages::OutputChunk& chunk) const {
    JsonWriter json;
    if (logprobs.asked.enabled)
        write_logprob_entries(json, chunk, logprobs, TokenNames(texts, /*as_ids=*/false));
    return json.take();
}

// Ends the output. Returns the final status of the response.
Standing ResponseAnswer::end(const messages::Finish* finish, ResponseEvents* events) {
    // An output cut after its first call is complete if only that call was wanted.
    const bool is_cut_short = call.takes_one_call && turn.has_calls() && finish != nullptr &&
                              finish->reason == messages::FinishReason::kLength;
    const Standing standing = standing_of(finish, is_cut_short);
    const bool is_whole = standing.status == "completed";
    output.end(is_whole ? ResponseOutput::End::kWhole : ResponseOutput::End::kCut, events);
    return standing;
}

void ResponseAnswer::write_usage(JsonWriter& json) const {
    json.begin_object().key("input_tokens").integer(usage.prompt_tokens);
    json.key("input_tokens_details").begin_object();
    json.key("cached_tokens").integer(usage.cached_tokens);
    json.key("cache_write_tokens").integer(0).end_object();
    json.key("output_tokens").integer(usage.completion_tokens);
    json.key("output_tokens_details").begin_object();
    json.key("reasoning_tokens").integer(turn.num_thinking_tokens()).end_object();
    json.key("total_tokens").integer(usage.prompt_tokens + usage.completion_tokens).end_object();
}

void ResponseAnswer::write_response(JsonWriter& json, const Standing& standing) const {
    const bool is_running = standing.status == "in_progress";
    json.begin_object().key("id").string(answer_id).key("object").string("response");
    json.key("created_at").integer(created).key("status").string(standing.status);
    json.key("model").string(model).key("error");
    if (standing.error.empty()) {
        json.null();
    } else {
        json.begin_object().key("code").string("server_error");
        json.key("message").string(standing.error).end_object();
    }
    json.key("incomplete_details");
    if (standing.why.empty()) {
        json.null();
    } else {
        json.begin_object().key("reason").string(standing.why).end_object();
    }
    json.key("output");
    output.write(json);
    for (const auto& [name, value] : shown) json.key(name).raw(value);
    json.key("usage");
    if (is_running) {
        json.null();
    } else {
        write_usage(json);
        write_own_members(json);
    }
    json.end_object();
}

void ResponseAnswer::write_whole(JsonWriter& json, std::vector<messages::OutputChunk>& outputs) {
    messages::OutputChunk& chunk = outputs.front();
    const std::string entries = logprobs_of(chunk);
    output.add_whole(turn, turn.append(chunk), entries);
    write_response(json, end(chunk.finish ? &*chunk.finish : nullptr, nullptr));
}

void ResponseAnswer::tell(ResponseEvents& events, std::string_view type, const Standing& standing)
    const {
    JsonWriter& json = events.begin(type).key("response");
    write_response(json, standing);
    events.end(json);
}

void ResponseAnswer::write_events(EventStream& stream, Generation::Event event) {
    ResponseEvents events(stream, next_event);
    if (!std::exchange(has_begun, true)) {
        tell(events, "response.created", {.status = "in_progress"});
        tell(events, "response.in_progress", {.status = "in_progress"});
    }
    const std::string entries = logprobs_of(event.chunk);
    output.add(turn, turn.append(event.chunk), entries, events);
    if (!event.chunk.finish) return;
    const Standing standing = end(&*event.chunk.finish, &events);
    const bool is_whole = standing.status == "completed";
    tell(events, is_whole ? "response.completed" : "response.incomplete", standing);
}

void ResponseAnswer::write_error(EventStream& stream, const Error& error) {
    ResponseEvents events(stream, next_event);
    output.end(ResponseOutput::End::kCut, &events);
    tell(events, "response.failed", {.status = "failed", .error = error.message});
}

Task<Response> input_tokens(Exchange& exchange) {
    if (const auto checked = check_is_json(exchange.request()); !checked)
        co_return ResponseAnswer::refusal(checked.error());
    Result<OpenAiResponses> given = parse_openai_responses(exchange.request().body);
    if (!given) co_return ResponseAnswer::refusal(given.error());
    ChatCall& call = given->call;
    const Result<> known = co_await find_adapter_of(exchange, call.model, call.request.adapter);
    if (!known) co_return ResponseAnswer::refusal(known.error());
    const Result<TurnPrompt> prompt =
        co_await prompt_of_turn(exchange, call.chat, call.forced_call);
    if (!prompt) co_return ResponseAnswer::refusal(prompt.error());
    JsonWriter json;
    json.begin_object().key("object").string("response.input_tokens");
    json.key("input_tokens").integer(static_cast<std::int64_t>(prompt->ids.size())).end_object();
    co_return Response::json_text(200, json.take());
}

}  // namespace

void add_openai_responses(Router& router) {
    router.add(
        Dialect::kOpenAi,
        Access::kData,
        {{"POST", "/v1/responses", serve<ResponseAnswer>},
         {"POST", "/v1/responses/input_tokens", input_tokens}}
    );
}

}  // namespace pitstop::http
