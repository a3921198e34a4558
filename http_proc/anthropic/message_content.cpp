#include "http_proc/anthropic/message_content.h"

namespace pitstop::http {
namespace {

constexpr std::string_view kCallPrefix = "toolu_";

void write_text_block(JsonWriter& json, std::string_view text) {
    json.begin_object().key("type").string("text").key("text").string(text);
    json.key("citations").null().end_object();
}

// `input` is JSON.
void write_call_block(
    JsonWriter& json, const AssistantTurn& turn, const ToolCall& call, std::string_view input
) {
    json.begin_object().key("type").string("tool_use");
    json.key("id").string(turn.call_id(kCallPrefix));
    json.key("name").string(call.name).key("input").raw(input).end_object();
}

}  // namespace

void write_content(JsonWriter& json, const AssistantTurn& turn, const ToolCallParser::Part& said) {
    json.begin_array();
    said.visit(
        [&](std::string_view text) { write_text_block(json, text); },
        [&](const ToolCall& call) { write_call_block(json, turn, call, call.arguments); }
    );
    json.end_array();
}

void MessageContentEvents::add(
    EventStream& stream, const AssistantTurn& turn, const ToolCallParser::Part& said
) {
    said.visit(
        [&](std::string_view text) { add_text(stream, text); },
        [&](const ToolCall& call) { add_call(stream, turn, call); }
    );
}

void MessageContentEvents::end(EventStream& stream) {
    if (is_in_text_) write_stop(stream);
    is_in_text_ = false;
}

JsonWriter& MessageContentEvents::begin_block(EventStream& stream) const {
    JsonWriter& json = stream.begin_event("content_block_start").begin_object();
    json.key("type").string("content_block_start").key("index").integer(index_);
    return json.key("content_block");
}

void MessageContentEvents::add_text(EventStream& stream, std::string_view text) {
    if (!is_in_text_) {
        JsonWriter& begin = begin_block(stream);
        write_text_block(begin, "");
        begin.end_object();
        stream.end_event();
        is_in_text_ = true;
    }
    JsonWriter& json = stream.begin_event("content_block_delta").begin_object();
    json.key("type").string("content_block_delta").key("index").integer(index_);
    json.key("delta").begin_object().key("type").string("text_delta");
    json.key("text").string(text).end_object().end_object();
    stream.end_event();
}

void MessageContentEvents::add_call(
    EventStream& stream, const AssistantTurn& turn, const ToolCall& call
) {
    end(stream);
    JsonWriter& begin = begin_block(stream);
    write_call_block(begin, turn, call, "{}");  // its input follows as a delta
    begin.end_object();
    stream.end_event();
    JsonWriter& json = stream.begin_event("content_block_delta").begin_object();
    json.key("type").string("content_block_delta").key("index").integer(index_);
    json.key("delta").begin_object().key("type").string("input_json_delta");
    json.key("partial_json").string(call.arguments).end_object().end_object();
    stream.end_event();
    write_stop(stream);
}

void MessageContentEvents::write_stop(EventStream& stream) {
    JsonWriter& json = stream.begin_event("content_block_stop").begin_object();
    json.key("type").string("content_block_stop").key("index").integer(index_).end_object();
    stream.end_event();
    ++index_;
}

}  // namespace pitstop::http
