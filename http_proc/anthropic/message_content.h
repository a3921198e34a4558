// Writes the assistant's turn as content blocks of Anthropic's messages: the whole turn at once, or
// each block as events while it arrives.
#pragma once

#include "http_proc/format/json_writer.h"
#include "http_proc/format/turn_pieces.h"
#include "http_proc/generation/assistant_turn.h"
#include "http_proc/generation/event_stream.h"

#include <cstdint>
#include <optional>
#include <string_view>

namespace pitstop::http {

// Writes the list of blocks of a turn that has ended.
void write_content(JsonWriter& json, const AssistantTurn& turn, const TurnPieces& pieces);

class MessageContentEvents {
  public:
    void add(EventStream& stream, const AssistantTurn& turn, const TurnPieces& pieces);
    // Ends the open block, if any.
    void end(EventStream& stream);

  private:
    using Kind = TurnItem::Kind;

    void add_run(EventStream& stream, Kind kind, std::string_view text);
    void begin_call(EventStream& stream, const AssistantTurn& turn, const TurnPiece& call);
    JsonWriter& begin_block(EventStream& stream) const;
    void write_delta(
        EventStream& stream, std::string_view type, std::string_view member, std::string_view text
    ) const;

    std::int64_t index_ = 0;      // of the open block, or of the next one
    std::optional<Kind> open_{};  // the kind of the open block
};

}  // namespace pitstop::http
