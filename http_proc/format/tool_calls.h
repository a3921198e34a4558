// Separates text from tool calls in a model's output, while the output arrives.
//
//   ToolCallParser parser(ToolFormat::kHermes);
//   for (each piece of output) use(parser.append(piece));
//   use(parser.finish());
//
// A call begins as soon as its name and the beginning of its arguments are known; its arguments
// follow in pieces, as compact JSON. If the output does not go on as a call, a call that has not
// begun is text, as it was written; one that has begun is broken, and the rest is text. Text that
// may become a marker is held back until that is decided. The output is read byte by byte, so its
// pieces change nothing.
//
// Source: the formats' rows (tool_formats.h).
// Bounded: by the output; a byte costs constant time, and is read again at most a few times.
#pragma once

#include "http_proc/format/tool_formats.h"
#include "http_proc/format/tool_schemas.h"
#include "http_proc/format/turn_pieces.h"
#include "http_proc/format/value_reader.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::http {

class ToolCallParser {
  public:
    // `schemas` decide the types of values in formats that write them without quotes; null: none
    // is known.
    explicit ToolCallParser(ToolFormat format, std::shared_ptr<const ToolSchemas> schemas = nullptr)
        : row_(&row_of(format)), schemas_(std::move(schemas)) {}

    // Returns the pieces that are decided so far. In `finish`, a last call may lack its closing
    // markers.
    [[nodiscard]] TurnPieces append(std::string_view piece);
    [[nodiscard]] TurnPieces finish();

  private:
    enum class State : std::uint8_t {
        kStart,  // only white space so far, or since the last call
        kText,
        kBody,  // after a marker
        kRest,  // the rest is text
    };
    // The place in a body. Each grammar has its own order of them.
    enum class Phase : std::uint8_t {
        kBegin,
        kBetween,  // calls of one section
        kObject,   // of an object with the call: its value, member by member
        kObjectKey,
        kObjectColon,
        kObjectValue,
        kObjectAfter,  // a comma, or the object's end
        kName,
        kNextKey,  // or the call's end
        kKey,
        kValueOpen,
        kValue,
        kArguments,
        kAfterArguments,
        kEnd,          // the closing marker
        kOptionalEnd,  // the same, if it follows
    };
    enum class Step : std::uint8_t {
        kMore,
        kCall,        // the byte ends the call; the body goes on
        kEndOfCalls,  // the byte ends the list of calls; what follows belongs to no call
        kBody,        // the byte ends the body, and its call
        kBroken,      // no call goes on with the byte
    };

    // How a value without quotes is read.
    enum class Typing : std::uint8_t {
        kText,    // as it is written
        kJson,    // text only if it is no JSON
        kEither,  // the types that the schema allows decide, once the value is whole
    };

    void feed(char c);
    void drain();
    void feed_text(char c);
    void text_of_space();
    void begin_body(Phase phase);
    void feed_body(char c);
    void give_up(std::string_view rest);
    void end_body();

    Step step(char c);
    Step step_object(char c);
    Step step_objects(char c);
    Step step_mistral(char c);
    Step step_named_json(char c);
    Step step_tagged(char c);
    Step step_python(char c);

    // Parts of grammars.
    Step read_object(char c);
    Step end_of_member();
    Step read_arguments(char c, Step at_end);
    Step match(char c, std::string_view marker, Step at_end);
    Step read_value(char c);
    Step read_between(char c);
    Step read_tagged_name(char c);
    bool begin_named_call();
    [[nodiscard]] Typing typing() const;
    [[nodiscard]] bool is_text_of_either() const;
    Step read_next_key(char c);
    Step read_tagged_value(char c);
    Step read_python_key(char c);
    Step read_optional_end(char c);
    void begin_member();
    void begin_parameter();
    void end_parameter();
    void begin_call(std::string name, std::string id);
    void end_call();
    void break_call();
    void flush();
    [[nodiscard]] bool is_whole_at_end();

    const ToolFormatRow* row_;
    std::shared_ptr<const ToolSchemas> schemas_;
    State state_ = State::kStart;
    Phase phase_ = Phase::kBegin;
    TurnPieces pieces_{};
    std::string pending_{};  // bytes to read again, the last one first
    std::string space_{};    // held back at the start
    std::string marker_{};   // what may become a marker, in text or in a body
    std::string opening_{};  // the marker that began the body, with the space before it
    std::string written_{};  // bytes read since then that are not in a piece yet
    bool has_call_ = false;  // the body has had a call
    bool has_calls_ = false;

    // The open call.
    bool is_begun_ = false;  // a piece has reported it
    std::optional<std::string> name_{};
    std::string arguments_{};  // not in a piece yet
    std::string token_{};      // a name, a key or a value that is being read
    std::optional<ValueReader> value_{};
    std::string key_{};
    bool has_arguments_ = false;
    bool is_list_ = false;    // Mistral's: of objects
    bool has_comma_ = false;  // read before this member
    bool is_first_key_ = true;
    bool streams_value_ = false;
    bool skips_line_end_ = false;
    bool needs_no_close_ = false;  // the body began with the short marker
};

}  // namespace pitstop::http
