// Serves Anthropic's /v1/messages and /v1/messages/count_tokens. The model's chat template makes
// the prompt from the conversation; the output is a chat's, as in /v1/chat/completions.
#include "http_proc/anthropic/message_content.h"
#include "http_proc/anthropic/messages_request.h"
#include "http_proc/anthropic/routes.h"
#include "http_proc/generation/chat_answer.h"
#include "http_proc/generation/request_checks.h"
#include "http_proc/generation/turn_prompt.h"
#include "http_proc/server/errors.h"

#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

struct Message : ChatAnswer {
    static constexpr Dialect kDialect = Dialect::kAnthropic;

    bool has_begun = false;  // whether a stream's first event was written
    MessageContentEvents content{};

    Message(Exchange& exchange, ChatCall given) : ChatAnswer(exchange, std::move(given), "msg_") {}

    static Result<Message> parse(Exchange& exchange) {
        RETURN_IF_ERROR(check_is_json(exchange.request()));
        ASSIGN_OR_RETURN(ChatCall call, parse_anthropic_messages(exchange.request().body));
        RETURN_IF_ERROR(read_adapter_of(exchange, call.model, call.request.adapter));
        RETURN_IF_ERROR(check_thinking(call.thinking, exchange.server().formats().thinking));
        Message message(exchange, std::move(call));
        RETURN_IF_ERROR(message.hold_calls(exchange));
        return message;
    }
    static Response refusal(const Error& error) {
        return error_response(kDialect, status_of_chat(error.code), error);
    }
    void write_events(EventStream& stream, Generation::Event event);
    void write_error(EventStream& stream, const Error& error) const;
    void write_whole(JsonWriter& json, std::vector<messages::OutputChunk>& outputs);

    void write_head(JsonWriter& json) const;
    void write_stop(JsonWriter& json, const messages::Finish* finish) const;
    void write_usage(JsonWriter& json) const;
    void write_end_events(EventStream& stream, const messages::Finish& finish);
};

void Message::write_head(JsonWriter& json) const {
    json.key("id").string(answer_id).key("type").string("message");
    json.key("role").string("assistant").key("model").string(model);
}

// `finish` is null while the output continues. The API has no stop reason for an abort, so an abort
// gets a reason of its own: part of an output must not look complete.
void Message::write_stop(JsonWriter& json, const messages::Finish* finish) const {
    using messages::FinishReason;
    json.key("stop_reason");
    if (finish == nullptr) {
        json.null().key("stop_sequence").null();
        return;
    }
    const bool is_stop = finish->reason == FinishReason::kStop;
    const bool is_length = finish->reason == FinishReason::kLength;
    if (turn.has_calls() && (is_stop || (is_length && call.takes_one_call))) {
        json.string("tool_use").key("stop_sequence").null();
    } else if (is_stop && !finish->matched_text.empty()) {
        json.string("stop_sequence").key("stop_sequence").string(finish->matched_text);
    } else {
        json.string(is_stop ? "end_turn" : is_length ? "max_tokens" : "abort");
        json.key("stop_sequence").null();
    }
}

// The three counts of input tokens add up to the prompt's length.
void Message::write_usage(JsonWriter& json) const {
    json.key("usage").begin_object();
    json.key("input_tokens").integer(usage.prompt_tokens - usage.cached_tokens);
    json.key("cache_creation_input_tokens").integer(0);
    json.key("cache_read_input_tokens").integer(usage.cached_tokens);
    json.key("output_tokens").integer(usage.completion_tokens).end_object();
}

void Message::write_whole(JsonWriter& json, std::vector<messages::OutputChunk>& outputs) {
    const TurnPieces pieces = turn.append(outputs.front());
    json.begin_object();
    write_head(json);
    json.key("content");
    write_content(json, turn, pieces);
    write_stop(json, outputs.front().finish ? &*outputs.front().finish : nullptr);
    write_usage(json);
    write_own_members(json);
    json.end_object();
}

void Message::write_events(EventStream& stream, Generation::Event event) {
    if (!std::exchange(has_begun, true)) {
        JsonWriter& json = stream.begin_event("message_start").begin_object();
        json.key("type").string("message_start").key("message").begin_object();
        write_head(json);
        json.key("content").begin_array().end_array();
        write_stop(json, nullptr);
        write_usage(json);
        json.end_object().end_object();
        stream.end_event();
    }
    content.add(stream, turn, turn.append(event.chunk));
    if (event.chunk.finish) write_end_events(stream, *event.chunk.finish);
}

void Message::write_end_events(EventStream& stream, const messages::Finish& finish) {
    content.end(stream);
    JsonWriter& json = stream.begin_event("message_delta").begin_object();
    json.key("type").string("message_delta").key("delta").begin_object();
    write_stop(json, &finish);
    json.end_object();
    write_usage(json);
    write_own_members(json);
    json.end_object();
    stream.end_event();
    stream.begin_event("message_stop")
        .begin_object()
        .key("type")
        .string("message_stop")
        .end_object();
    stream.end_event();
}

void Message::write_error(EventStream& stream, const Error& error) const {
    stream.begin_event("error").raw(error_json(kDialect, status_of_chat(error.code), error));
    stream.end_event();
}

Task<Response> count_tokens(Exchange& exchange) {
    if (const auto checked = check_is_json(exchange.request()); !checked)
        co_return Message::refusal(checked.error());
    Result<ChatCall> call = parse_anthropic_count(exchange.request().body);
    if (!call) co_return Message::refusal(call.error());
    const Result<> known = co_await find_adapter_of(exchange, call->model, call->request.adapter);
    if (!known) co_return Message::refusal(known.error());
    const Result<TurnPrompt> prompt =
        co_await prompt_of_turn(exchange, call->chat, call->forced_call);
    if (!prompt) co_return Message::refusal(prompt.error());
    JsonWriter json;
    json.begin_object().key("input_tokens").integer(static_cast<std::int64_t>(prompt->ids.size()));
    co_return Response::json_text(200, json.end_object().take());
}

}  // namespace

void add_anthropic_messages(Router& router) {
    router.add(
        Dialect::kAnthropic,
        Access::kData,
        {{"POST", "/v1/messages", serve<Message>},
         {"POST", "/v1/messages/count_tokens", count_tokens}}
    );
}

}  // namespace pitstop::http
