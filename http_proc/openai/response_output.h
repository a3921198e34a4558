// The output items of a response as the assistant writes them: messages, reasoning and function
// calls. Also their events if the response is streamed.
//
// Source: OpenAI's API reference, "Streaming events" of responses.
// Bounded: by the length of the output.
#pragma once

#include "http_proc/format/json_writer.h"
#include "http_proc/format/turn_pieces.h"
#include "http_proc/generation/assistant_turn.h"
#include "http_proc/generation/event_stream.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

// Numbers the events of a response.
class ResponseEvents {
  public:
    explicit ResponseEvents(EventStream& stream, std::int64_t& next)
        : stream_(&stream), next_(&next) {}

    // Begins the object of an event, with its type and number.
    [[nodiscard]] JsonWriter& begin(std::string_view type);
    // Ends the event's object and the event.
    void end(JsonWriter& json);

  private:
    EventStream* stream_;
    std::int64_t* next_;
};

class ResponseOutput {
  public:
    // kWhole: the model ended the output. kCut: a limit or an abort did.
    enum class End { kWhole, kCut };

    // Adds the next pieces, and the logprobs of their tokens (JSON objects separated by commas).
    // Sends their events.
    void add(
        const AssistantTurn& turn,
        const TurnPieces& pieces,
        std::string_view logprobs,
        ResponseEvents& events
    );
    // Adds the pieces of a turn that has ended, without events.
    void add_whole(const AssistantTurn& turn, const TurnPieces& pieces, std::string_view logprobs);
    // Ends the open item. An empty output becomes a message without text.
    void end(End end, ResponseEvents* events = nullptr);
    // Writes the list of items.
    void write(JsonWriter& json) const;

  private:
    enum class Kind : std::uint8_t { kMessage, kReasoning, kCall };
    struct Item {
        Kind kind{};
        std::string id{};
        std::string text{};      // of a message or reasoning
        std::string logprobs{};  // of a message: objects separated by commas
        ToolCall call{};         // with the arguments that have arrived
        std::string call_id{};
        std::string_view status = "in_progress";
    };

    // In these functions, `events` is null for a response without events.
    void begin_text_item(Kind kind, ResponseEvents* events);
    void add_text(Kind kind, std::string_view text, ResponseEvents* events);
    void begin_call(
        const AssistantTurn& turn,
        std::string name,
        std::string_view given_id,
        ResponseEvents* events
    );
    void add_arguments(std::string_view arguments, ResponseEvents* events);
    void end_item(std::string_view status, ResponseEvents* events);
    void tell_end_of_text(const Item& item, ResponseEvents& events) const;
    [[nodiscard]] JsonWriter& begin_event(ResponseEvents& events, std::string_view type) const;
    [[nodiscard]] JsonWriter& begin_part_event(ResponseEvents& events, std::string_view type) const;
    static void append(std::string& logprobs, std::string_view more);
    static void write_item(JsonWriter& json, const Item& item);
    void tell_item(ResponseEvents& events, std::string_view type) const;

    std::vector<Item> items_{};
    std::string next_logprobs_{};  // of tokens whose text has not arrived yet
    bool is_in_item_ = false;      // the last item is open
};

}  // namespace pitstop::http
