// Writes the assistant's turn as content blocks of Anthropic's messages: all at once, or event by
// event as they arrive. A tool call is sent whole, in one delta.
#pragma once

#include "http_proc/format/json_writer.h"
#include "http_proc/generation/assistant_turn.h"
#include "http_proc/generation/event_stream.h"

#include <cstdint>
#include <string_view>

namespace pitstop::http {

// Writes the list of blocks of a whole answer.
void write_content(JsonWriter& json, const AssistantTurn& turn, const ToolCallParser::Part& said);

class MessageContentEvents {
  public:
    void add(EventStream& stream, const AssistantTurn& turn, const ToolCallParser::Part& said);
    // Ends the open block, if any.
    void end(EventStream& stream);

  private:
    void add_text(EventStream& stream, std::string_view text);
    void add_call(EventStream& stream, const AssistantTurn& turn, const ToolCall& call);
    JsonWriter& begin_block(EventStream& stream) const;
    void write_stop(EventStream& stream);

    std::int64_t index_ = 0;  // of the open block, or of the next one
    bool is_in_text_ = false;
};

}  // namespace pitstop::http
