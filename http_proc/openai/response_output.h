// The output items of a response as the assistant writes them, and their events if the response is
// streamed. A function call is sent whole, in one delta.
//
// Source: OpenAI's API reference, "Streaming events" of responses.
// Bounded: by the output.
#pragma once

#include "http_proc/format/json_writer.h"
#include "http_proc/generation/assistant_turn.h"
#include "http_proc/generation/event_stream.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

// Numbers the events of a response.
class ResponseEvents {
  public:
    explicit ResponseEvents(EventStream& stream, std::int64_t& next)
        : stream_(&stream), next_(&next) {}

    // Begins an event's object with its type and number.
    [[nodiscard]] JsonWriter& begin(std::string_view type);
    // Ends the object and the event.
    void end(JsonWriter& json);

  private:
    EventStream* stream_;
    std::int64_t* next_;
};

class ResponseOutput {
  public:
    // Whether the output reached its own end.
    enum class End { kWhole, kCut };

    // Adds the next part and the logprobs of its tokens, JSON objects separated by commas; sends
    // events if there are any to send.
    void add(
        const AssistantTurn& turn,
        const ToolCallParser::Part& said,
        std::string_view logprobs,
        ResponseEvents* events = nullptr
    );
    // Ends the open item. An empty output is a message without text.
    void end(End end, ResponseEvents* events = nullptr);
    // Writes the list of items.
    void write(JsonWriter& json) const;

  private:
    struct Item {
        std::string id{};
        std::string text{};              // of a message
        std::string logprobs{};          // of a message: objects separated by commas
        std::optional<ToolCall> call{};  // set for a call, which is not a message
        std::string call_id{};
        std::string_view status = "in_progress";
    };

    void begin_message(ResponseEvents* events);
    void add_text(std::string_view text, ResponseEvents* events);
    void end_message(std::string_view status, ResponseEvents* events);
    void add_call(const AssistantTurn& turn, const ToolCall& call, ResponseEvents* events);
    [[nodiscard]] JsonWriter& begin_event(ResponseEvents& events, std::string_view type) const;
    [[nodiscard]] JsonWriter& begin_part_event(ResponseEvents& events, std::string_view type) const;
    static void append(std::string& logprobs, std::string_view more);
    static void write_item(JsonWriter& json, const Item& item);
    void tell_item(ResponseEvents& events, std::string_view type) const;

    std::vector<Item> items_{};
    std::string next_logprobs_{};  // of tokens whose text has not arrived yet
    bool is_in_message_ = false;
};

}  // namespace pitstop::http
