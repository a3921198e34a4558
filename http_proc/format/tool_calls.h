// Separates text from tool calls in a model's output as it arrives.
//
//   ToolCallParser parser(ToolFormat::kHermes);
//   for (each piece of output) use(parser.append(piece));
//   use(parser.finish());
//
// A call begins as soon as its name and the beginning of its arguments are known; the arguments
// follow in pieces, as compact JSON. If the output cannot continue as a call, a call that has not
// begun becomes text, unchanged. A call that has begun is broken, and later output is text. Text
// that may become a marker is withheld until more text decides. The parser reads byte by byte, so
// the pieces in which output arrives change nothing.
//
// Source: the formats' rows (tool_formats.h).
// Bounded: by the output; a byte takes constant time, and is read again at most a few times.
#pragma once

#include "http_proc/format/call_body.h"
#include "http_proc/format/call_reader.h"
#include "http_proc/format/tool_formats.h"
#include "http_proc/format/tool_schemas.h"
#include "http_proc/format/turn_pieces.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::http {

class ToolCallParser {
  public:
    // `schemas`: the types of values, for formats that write values without quotes; null: unknown.
    // REQUIRES: the format is not harmony, whose calls are messages (harmony.h).
    explicit ToolCallParser(ToolFormat format, std::shared_ptr<const ToolSchemas> schemas = nullptr)
        : row_(&row_of(format)), schemas_(std::move(schemas)) {}

    // Return the pieces that are final so far. In `finish`, the last call may lack its closing
    // markers.
    [[nodiscard]] TurnPieces append(std::string_view piece);
    [[nodiscard]] TurnPieces finish();

  private:
    enum class State : std::uint8_t {
        kStart,  // only white space since the start or the last call
        kText,
        kBody,  // after a marker
        kRest,  // all further output is text
    };

    void feed(char c);
    void drain();
    void read_later(std::string_view bytes);
    void feed_text(char c);
    void text_of_space();
    void begin_body(bool by_short_open);
    void feed_body(char c);
    void give_up(std::string_view rest);
    void end_body();

    const ToolFormatRow* row_;
    std::shared_ptr<const ToolSchemas> schemas_;
    State state_ = State::kStart;
    std::string pending_{};  // bytes to read again, the last one first
    std::string space_{};    // withheld at the start
    std::string marker_{};   // in text: the possible start of a marker
    CallBody body_{};
    std::optional<CallReader> reader_{};  // the reader of the body
};

}  // namespace pitstop::http
