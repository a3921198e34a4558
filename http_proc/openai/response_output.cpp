#include "http_proc/openai/response_output.h"

#include "http_proc/server/tree.h"

#include <utility>

namespace pitstop::http {
namespace {

void write_list(JsonWriter& json, std::string_view entries) {
    json.raw("[" + std::string(entries) + "]");
}

void write_part(JsonWriter& json, std::string_view text, std::string_view logprobs) {
    json.begin_object().key("type").string("output_text").key("text").string(text);
    json.key("annotations").begin_array().end_array().key("logprobs");
    write_list(json, logprobs);
    json.end_object();
}

}  // namespace

JsonWriter& ResponseEvents::begin(std::string_view type) {
    JsonWriter& json = stream_->begin_event(type).begin_object();
    json.key("type").string(type).key("sequence_number").integer((*next_)++);
    return json;
}

void ResponseEvents::end(JsonWriter& json) {
    json.end_object();
    stream_->end_event();
}

void ResponseOutput::add(
    const AssistantTurn& turn,
    const ToolCallParser::Part& said,
    std::string_view logprobs,
    ResponseEvents* events
) {
    append(next_logprobs_, logprobs);
    said.visit(
        [&](std::string_view text) { add_text(text, events); },
        [&](const ToolCall& call) { add_call(turn, call, events); }
    );
}

void ResponseOutput::append(std::string& logprobs, std::string_view more) {
    if (!logprobs.empty() && !more.empty()) logprobs += ',';
    logprobs += more;
}

void ResponseOutput::end(End end, ResponseEvents* events) {
    if (items_.empty()) begin_message(events);
    end_message(end == End::kWhole ? "completed" : "incomplete", events);
}

void ResponseOutput::begin_message(ResponseEvents* events) {
    is_in_message_ = true;
    items_.push_back({.id = "msg_" + Tree::random_id()});
    if (events == nullptr) return;
    tell_item(*events, "response.output_item.added");
    JsonWriter& json = begin_part_event(*events, "response.content_part.added");
    json.key("part");
    write_part(json, "", "");
    events->end(json);
}

void ResponseOutput::add_text(std::string_view text, ResponseEvents* events) {
    if (!is_in_message_) begin_message(events);
    const std::string logprobs = std::exchange(next_logprobs_, {});
    items_.back().text += text;
    append(items_.back().logprobs, logprobs);
    if (events == nullptr) return;
    JsonWriter& json = begin_part_event(*events, "response.output_text.delta");
    json.key("delta").string(text).key("logprobs");
    write_list(json, logprobs);
    events->end(json);
}

void ResponseOutput::end_message(std::string_view status, ResponseEvents* events) {
    if (!std::exchange(is_in_message_, false)) return;
    Item& item = items_.back();
    item.status = status;
    append(item.logprobs, std::exchange(next_logprobs_, {}));  // also for a token without text
    if (events == nullptr) return;
    JsonWriter& done = begin_part_event(*events, "response.output_text.done");
    done.key("text").string(item.text).key("logprobs");
    write_list(done, item.logprobs);
    events->end(done);
    JsonWriter& part = begin_part_event(*events, "response.content_part.done");
    part.key("part");
    write_part(part, item.text, item.logprobs);
    events->end(part);
    tell_item(*events, "response.output_item.done");
}

void ResponseOutput::add_call(
    const AssistantTurn& turn, const ToolCall& call, ResponseEvents* events
) {
    end_message("completed", events);
    Item& item = items_.emplace_back();
    item.id = "fc_" + Tree::random_id();
    item.call = call;
    item.call_id = turn.call_id("call_");
    if (events != nullptr) {
        tell_item(*events, "response.output_item.added");
        JsonWriter& delta = begin_event(*events, "response.function_call_arguments.delta");
        events->end(delta.key("delta").string(call.arguments));
        JsonWriter& done = begin_event(*events, "response.function_call_arguments.done");
        events->end(done.key("name").string(call.name).key("arguments").string(call.arguments));
    }
    item.status = "completed";
    if (events != nullptr) tell_item(*events, "response.output_item.done");
}

// An item that has just begun has neither content nor arguments.
void ResponseOutput::write_item(JsonWriter& json, const Item& item) {
    const bool has_begun_only = item.status == "in_progress";
    json.begin_object().key("id").string(item.id);
    json.key("type").string(item.call ? "function_call" : "message");
    json.key("status").string(item.status);
    if (item.call) {
        json.key("call_id").string(item.call_id).key("name").string(item.call->name);
        json.key("arguments").string(has_begun_only ? "" : item.call->arguments);
    } else {
        json.key("role").string("assistant").key("content").begin_array();
        if (!has_begun_only) write_part(json, item.text, item.logprobs);
        json.end_array();
    }
    json.end_object();
}

void ResponseOutput::write(JsonWriter& json) const {
    json.begin_array();
    for (const Item& item : items_) write_item(json, item);
    json.end_array();
}

// Reports the last item in its present state.
void ResponseOutput::tell_item(ResponseEvents& events, std::string_view type) const {
    JsonWriter& json = events.begin(type);
    json.key("output_index").integer(static_cast<std::int64_t>(items_.size()) - 1).key("item");
    write_item(json, items_.back());
    events.end(json);
}

// Begins an event about the last item.
JsonWriter& ResponseOutput::begin_event(ResponseEvents& events, std::string_view type) const {
    JsonWriter& json = events.begin(type).key("item_id").string(items_.back().id);
    return json.key("output_index").integer(static_cast<std::int64_t>(items_.size()) - 1);
}

// Begins an event about the last item's only part.
JsonWriter& ResponseOutput::begin_part_event(ResponseEvents& events, std::string_view type) const {
    return begin_event(events, type).key("content_index").integer(0);
}

}  // namespace pitstop::http
