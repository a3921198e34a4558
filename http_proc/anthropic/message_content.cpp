#include "http_proc/anthropic/message_content.h"

namespace pitstop::http {
namespace {

constexpr std::string_view kCallPrefix = "toolu_";

void write_text_block(JsonWriter& json, std::string_view text) {
    json.begin_object().key("type").string("text").key("text").string(text);
    json.key("citations").null().end_object();
}

// The empty signature is for clients that require one; only Anthropic's own servers check it.
void write_thinking_block(JsonWriter& json, std::string_view thinking) {
    json.begin_object().key("type").string("thinking").key("thinking").string(thinking);
    json.key("signature").string("").end_object();
}

// `input`: JSON.
void write_call_block(
    JsonWriter& json,
    const AssistantTurn& turn,
    std::string_view id,
    std::string_view name,
    std::string_view input
) {
    json.begin_object().key("type").string("tool_use");
    json.key("id").string(turn.call_id(kCallPrefix, id));
    json.key("name").string(name).key("input").raw(input).end_object();
}

}  // namespace

void write_content(JsonWriter& json, const AssistantTurn& turn, const TurnPieces& pieces) {
    json.begin_array();
    for (const TurnItem& item : whole_items(pieces)) {
        switch (item.kind) {
            case TurnItem::Kind::kText:
                write_text_block(json, item.text);
                break;
            case TurnItem::Kind::kThinking:
                write_thinking_block(json, item.text);
                break;
            case TurnItem::Kind::kCall:
                write_call_block(json, turn, item.call.id, item.call.name, item.call.arguments);
        }
    }
    json.end_array();
}

void MessageContentEvents::add(
    EventStream& stream, const AssistantTurn& turn, const TurnPieces& pieces
) {
    for (const TurnPiece& piece : pieces.list()) {
        switch (piece.kind) {
            case TurnPiece::Kind::kText:
                add_run(stream, Kind::kText, piece.text);
                break;
            case TurnPiece::Kind::kThinking:
                add_run(stream, Kind::kThinking, piece.text);
                break;
            case TurnPiece::Kind::kCall:
                begin_call(stream, turn, piece);
                break;
            case TurnPiece::Kind::kArguments:
                if (!piece.text.empty())
                    write_delta(stream, "input_json_delta", "partial_json", piece.text);
                break;
            case TurnPiece::Kind::kCallEnd:
            case TurnPiece::Kind::kCallBroken:
                end(stream);
        }
    }
}

void MessageContentEvents::end(EventStream& stream) {
    if (!open_) return;
    if (open_ == Kind::kThinking) write_delta(stream, "signature_delta", "signature", "");
    JsonWriter& json = stream.begin_event("content_block_stop").begin_object();
    json.key("type").string("content_block_stop").key("index").integer(index_).end_object();
    stream.end_event();
    ++index_;
    open_.reset();
}

JsonWriter& MessageContentEvents::begin_block(EventStream& stream) const {
    JsonWriter& json = stream.begin_event("content_block_start").begin_object();
    json.key("type").string("content_block_start").key("index").integer(index_);
    return json.key("content_block");
}

void MessageContentEvents::add_run(EventStream& stream, Kind kind, std::string_view text) {
    const bool is_text = kind == Kind::kText;
    if (open_ != kind) {
        end(stream);
        JsonWriter& begin = begin_block(stream);
        is_text ? write_text_block(begin, "") : write_thinking_block(begin, "");
        begin.end_object();
        stream.end_event();
        open_ = kind;
    }
    if (is_text) {
        write_delta(stream, "text_delta", "text", text);
    } else {
        write_delta(stream, "thinking_delta", "thinking", text);
    }
}

void MessageContentEvents::begin_call(
    EventStream& stream, const AssistantTurn& turn, const TurnPiece& call
) {
    end(stream);
    JsonWriter& begin = begin_block(stream);
    write_call_block(begin, turn, call.id, call.text, "{}");  // the call's input follows in deltas
    begin.end_object();
    stream.end_event();
    open_ = Kind::kCall;
}

void MessageContentEvents::write_delta(
    EventStream& stream, std::string_view type, std::string_view member, std::string_view text
) const {
    JsonWriter& json = stream.begin_event("content_block_delta").begin_object();
    json.key("type").string("content_block_delta").key("index").integer(index_);
    json.key("delta").begin_object().key("type").string(type);
    json.key(member).string(text).end_object().end_object();
    stream.end_event();
}

}  // namespace pitstop::http
