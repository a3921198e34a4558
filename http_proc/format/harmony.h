// Reads the output of gpt-oss as it arrives. A turn is a list of messages (harmony):
//
//   <|channel|>analysis<|message|>...<|end|>
//   <|start|>assistant<|channel|>commentary to=functions.NAME
//   <|constrain|>json<|message|>{...}<|call|>
//   <|start|>assistant<|channel|>final<|message|>...<|return|>
//
// `analysis` is thinking. A message with a recipient calls that function. `final`, and `commentary`
// without a recipient, are the answer. A line end separates two messages of thinking, or two of the
// answer. All other output remains text, unchanged.
//
// Source: the harmony format of openai's gpt-oss; SGLang's and vLLM's gpt-oss parsers.
// Bounded: withholds at most a marker, or a header of kHeaderBytesMax. A byte takes constant time.
#pragma once

#include "http_proc/format/call_body.h"
#include "http_proc/format/json_call_readers.h"
#include "http_proc/format/thinking.h"
#include "http_proc/format/turn_pieces.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace pitstop::http {

class HarmonyParser {
  public:
    // The kinds of message to parse; messages of other kinds remain text, with their markers.
    struct Reads {
        bool thinking = true;
        bool calls = true;
    };

    // `start`: whether the end of the prompt has begun the thinking.
    explicit HarmonyParser(
        Reads reads, ThinkingParser::Start start = ThinkingParser::Start::kOutside
    );

    // Return the pieces that are final so far. In `finish`, the last call may lack its end marker.
    [[nodiscard]] TurnPieces append(std::string_view piece);
    [[nodiscard]] TurnPieces finish();

    // The kind of message that the output is in now.
    enum class At : std::uint8_t {
        kHeader,  // a header or a marker: the next kind is unknown
        kThinking,
        kOther,
    };
    [[nodiscard]] At at() const;

  private:
    enum class Part : std::uint8_t {
        kOutside,  // between messages
        kHeader,
        kThinking,
        kAnswer,
        kCall,
        kAfterCall,  // after the call's whole arguments
        kWritten,    // text, unchanged
    };

    void feed(char c);
    void take(char c);
    void take_marker(std::string_view marker);
    void begin_message();
    void end_message(std::string_view marker);
    void read_of_call(char c);
    void break_call(std::string_view rest);

    Reads reads_;
    Part part_ = Part::kOutside;
    std::string marker_{};  // the possible beginning of a marker
    std::string header_{};
    std::string name_{};  // of the call
    CallArguments arguments_{};
    CallBody body_{};
    bool has_thinking_ = false;
    bool has_answer_ = false;
    bool needs_line_ = false;  // a line end must precede the next byte of this message
};

}  // namespace pitstop::http
