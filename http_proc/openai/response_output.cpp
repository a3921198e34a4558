#include "http_proc/openai/response_output.h"

#include "http_proc/server/tree.h"

#include <utility>

namespace pitstop::http {
namespace {

void write_list(JsonWriter& json, std::string_view entries) {
    json.raw("[" + std::string(entries) + "]");
}

void write_text_part(JsonWriter& json, std::string_view text, std::string_view logprobs) {
    json.begin_object().key("type").string("output_text").key("text").string(text);
    json.key("annotations").begin_array().end_array().key("logprobs");
    write_list(json, logprobs);
    json.end_object();
}

void write_reasoning_part(JsonWriter& json, std::string_view text) {
    json.begin_object().key("type").string("reasoning_text").key("text").string(text).end_object();
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
    const TurnPieces& pieces,
    std::string_view logprobs,
    ResponseEvents& events
) {
    append(next_logprobs_, logprobs);
    for (const TurnPiece& piece : pieces.list()) {
        switch (piece.kind) {
            case TurnPiece::Kind::kText:
                add_text(Kind::kMessage, piece.text, &events);
                break;
            case TurnPiece::Kind::kThinking:
                add_text(Kind::kReasoning, piece.text, &events);
                break;
            case TurnPiece::Kind::kCall:
                begin_call(turn, piece.text, piece.id, &events);
                break;
            case TurnPiece::Kind::kArguments:
                if (!piece.text.empty()) add_arguments(piece.text, &events);
                break;
            case TurnPiece::Kind::kCallEnd:
                end_item("completed", &events);
                break;
            case TurnPiece::Kind::kCallBroken:
                end_item("incomplete", &events);
        }
    }
}

void ResponseOutput::add_whole(
    const AssistantTurn& turn, const TurnPieces& pieces, std::string_view logprobs
) {
    append(next_logprobs_, logprobs);
    for (const TurnItem& item : whole_items(pieces)) {
        switch (item.kind) {
            case TurnItem::Kind::kText:
                add_text(Kind::kMessage, item.text, nullptr);
                break;
            case TurnItem::Kind::kThinking:
                add_text(Kind::kReasoning, item.text, nullptr);
                break;
            case TurnItem::Kind::kCall:
                begin_call(turn, item.call.name, item.call.id, nullptr);
                add_arguments(item.call.arguments, nullptr);
                end_item("completed", nullptr);
        }
    }
}

void ResponseOutput::append(std::string& logprobs, std::string_view more) {
    if (!logprobs.empty() && !more.empty()) logprobs += ',';
    logprobs += more;
}

void ResponseOutput::end(End end, ResponseEvents* events) {
    if (items_.empty()) begin_text_item(Kind::kMessage, events);
    end_item(end == End::kWhole ? "completed" : "incomplete", events);
}

void ResponseOutput::begin_text_item(Kind kind, ResponseEvents* events) {
    end_item("completed", events);
    is_in_item_ = true;
    const std::string_view prefix = kind == Kind::kMessage ? "msg_" : "rs_";
    items_.push_back({.kind = kind, .id = std::string(prefix) + Tree::random_id()});
    if (events == nullptr) return;
    tell_item(*events, "response.output_item.added");
    JsonWriter& json = begin_part_event(*events, "response.content_part.added");
    json.key("part");
    kind == Kind::kMessage ? write_text_part(json, "", "") : write_reasoning_part(json, "");
    events->end(json);
}

void ResponseOutput::add_text(Kind kind, std::string_view text, ResponseEvents* events) {
    if (!is_in_item_ || items_.back().kind != kind) begin_text_item(kind, events);
    Item& item = items_.back();
    item.text += text;
    std::string logprobs;
    if (kind == Kind::kMessage) {
        logprobs = std::exchange(next_logprobs_, {});
        append(item.logprobs, logprobs);
    }
    if (events == nullptr) return;
    if (kind == Kind::kReasoning) {
        JsonWriter& json = begin_part_event(*events, "response.reasoning_text.delta");
        return events->end(json.key("delta").string(text));
    }
    JsonWriter& json = begin_part_event(*events, "response.output_text.delta");
    json.key("delta").string(text).key("logprobs");
    write_list(json, logprobs);
    events->end(json);
}

void ResponseOutput::begin_call(
    const AssistantTurn& turn, std::string name, std::string_view given_id, ResponseEvents* events
) {
    end_item("completed", events);
    is_in_item_ = true;
    Item& item = items_.emplace_back();
    item.kind = Kind::kCall;
    item.id = "fc_" + Tree::random_id();
    item.call.name = std::move(name);
    item.call_id = turn.call_id("call_", given_id);
    if (events != nullptr) tell_item(*events, "response.output_item.added");
}

void ResponseOutput::add_arguments(std::string_view arguments, ResponseEvents* events) {
    items_.back().call.arguments += arguments;
    if (events == nullptr) return;
    JsonWriter& json = begin_event(*events, "response.function_call_arguments.delta");
    events->end(json.key("delta").string(arguments));
}

void ResponseOutput::end_item(std::string_view status, ResponseEvents* events) {
    if (!std::exchange(is_in_item_, false)) return;
    Item& item = items_.back();
    item.status = status;
    // Adds the logprobs of tokens without text, too.
    if (item.kind == Kind::kMessage) append(item.logprobs, std::exchange(next_logprobs_, {}));
    if (events == nullptr) return;
    if (item.kind == Kind::kCall) {
        JsonWriter& done = begin_event(*events, "response.function_call_arguments.done");
        done.key("name").string(item.call.name);
        events->end(done.key("arguments").string(item.call.arguments));
    } else {
        tell_end_of_text(item, *events);
    }
    tell_item(*events, "response.output_item.done");
}

void ResponseOutput::tell_end_of_text(const Item& item, ResponseEvents& events) const {
    const bool is_message = item.kind == Kind::kMessage;
    JsonWriter& done = begin_part_event(
        events, is_message ? "response.output_text.done" : "response.reasoning_text.done"
    );
    done.key("text").string(item.text);
    if (is_message) {
        done.key("logprobs");
        write_list(done, item.logprobs);
    }
    events.end(done);
    JsonWriter& part = begin_part_event(events, "response.content_part.done");
    part.key("part");
    is_message ? write_text_part(part, item.text, item.logprobs)
               : write_reasoning_part(part, item.text);
    events.end(part);
}

// Writes an item; one that has just begun has neither content nor arguments.
void ResponseOutput::write_item(JsonWriter& json, const Item& item) {
    const bool has_begun_only = item.status == "in_progress";
    json.begin_object().key("id").string(item.id).key("type");
    switch (item.kind) {
        case Kind::kMessage:
            json.string("message").key("status").string(item.status);
            json.key("role").string("assistant").key("content").begin_array();
            if (!has_begun_only) write_text_part(json, item.text, item.logprobs);
            json.end_array();
            break;
        case Kind::kReasoning:
            json.string("reasoning").key("status").string(item.status);
            json.key("summary").begin_array().end_array().key("content").begin_array();
            if (!has_begun_only) write_reasoning_part(json, item.text);
            json.end_array();
            break;
        case Kind::kCall:
            json.string("function_call").key("status").string(item.status);
            json.key("call_id").string(item.call_id).key("name").string(item.call.name);
            json.key("arguments").string(has_begun_only ? "" : item.call.arguments);
    }
    json.end_object();
}

void ResponseOutput::write(JsonWriter& json) const {
    json.begin_array();
    for (const Item& item : items_) write_item(json, item);
    json.end_array();
}

// Reports the last item in its current state.
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

// Begins an event about the only part of the last item.
JsonWriter& ResponseOutput::begin_part_event(ResponseEvents& events, std::string_view type) const {
    return begin_event(events, type).key("content_index").integer(0);
}

}  // namespace pitstop::http
