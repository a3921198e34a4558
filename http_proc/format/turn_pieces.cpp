#include "http_proc/format/turn_pieces.h"

#include <utility>

namespace pitstop::http {

using Kind = TurnPiece::Kind;

void TurnPieces::add_run(Kind kind, std::string_view text, std::string_view written) {
    if (text.empty() && written.empty()) return;
    if (list_.empty() || list_.back().kind != kind) list_.push_back({.kind = kind});
    list_.back().text += text;
    list_.back().written += written;
}

void TurnPieces::begin_call(std::string name, std::string id, std::string written) {
    list_.push_back(
        {.kind = Kind::kCall,
         .text = std::move(name),
         .id = std::move(id),
         .written = std::move(written)}
    );
}

void TurnPieces::end_call(std::string_view written) {
    list_.push_back({.kind = Kind::kCallEnd, .written = std::string(written)});
}

void TurnPieces::break_call(std::string_view written) {
    list_.push_back({.kind = Kind::kCallBroken, .written = std::string(written)});
}

void TurnPieces::add(TurnPiece piece) {
    const bool is_run = piece.kind == Kind::kText || piece.kind == Kind::kThinking ||
                        piece.kind == Kind::kArguments;
    if (is_run) {
        add_run(piece.kind, piece.text, piece.written);
    } else {
        list_.push_back(std::move(piece));
    }
}

void TurnPieces::append(TurnPieces next) {
    for (TurnPiece& piece : next.list_) add(std::move(piece));
}

std::vector<TurnItem> whole_items(const TurnPieces& pieces) {
    std::vector<TurnItem> items;
    const auto add = [&](TurnItem::Kind kind, std::string_view text) {
        if (text.empty()) return;
        if (items.empty() || items.back().kind != kind) items.push_back({.kind = kind});
        items.back().text += text;
    };
    ToolCall call;
    std::string written;
    for (const TurnPiece& piece : pieces.list()) {
        written += piece.written;
        switch (piece.kind) {
            case Kind::kText:
                add(TurnItem::Kind::kText, piece.text);
                break;
            case Kind::kThinking:
                add(TurnItem::Kind::kThinking, piece.text);
                break;
            case Kind::kCall:
                call = {.name = piece.text, .arguments = {}, .id = piece.id};
                written = piece.written;
                break;
            case Kind::kArguments:
                call.arguments += piece.text;
                break;
            case Kind::kCallEnd:
                items.push_back({.kind = TurnItem::Kind::kCall, .call = std::move(call)});
                call = {};
                break;
            case Kind::kCallBroken:
                add(TurnItem::Kind::kText, written);
        }
    }
    return items;
}

}  // namespace pitstop::http
