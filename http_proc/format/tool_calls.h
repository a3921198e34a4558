// Separates text from tool calls in a model's output, while the text arrives.
//
//   ToolCallParser parser(ToolFormat::kHermes);
//   for (each piece of output) use(parser.append(piece));
//   use(parser.finish());
//
// A call is reported when it is complete, so a malformed or cut off call never looks like one: it
// stays text, as written. Text that may become a marker is held back until that is decided.
//
// Source: the parsers of these names in SGLang (function_call/) and in vLLM (tool_parsers/).
// Bounded: by the output; a piece costs time in its own length, whatever is held back.
#pragma once

#include "http_proc/format/turn_pieces.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

//   kHermes   <tool_call>{"name": N, "arguments": {...}}</tool_call>, any number of them in a text
//   kLlama3   <|python_tag|> anywhere, or a { at the very beginning: from there on objects
//             {"name": N, "parameters": {...}}, separated by ; or , or nothing
//   kMistral  [TOOL_CALLS] and a list [{"name": N, "arguments": {...}}, ...], or N{...} per marker
//
// In each, `arguments` and `parameters` mean the same.
enum class ToolFormat : std::uint8_t { kHermes, kLlama3, kMistral };

// The formats' names in SGLang's and vLLM's --tool-call-parser; tool_format_named() returns nothing
// for any other name.
struct ToolFormatName {
    std::string_view name{};
    ToolFormat format{};
};
inline constexpr std::array<ToolFormatName, 6> kToolFormats{{
    {"hermes", ToolFormat::kHermes},
    {"qwen", ToolFormat::kHermes},
    {"qwen25", ToolFormat::kHermes},
    {"llama3", ToolFormat::kLlama3},
    {"llama3_json", ToolFormat::kLlama3},
    {"mistral", ToolFormat::kMistral},
}};
[[nodiscard]] std::optional<ToolFormat> tool_format_named(std::string_view name);
// Finds the format in a model's chat template; nothing if the template shows none of these.
[[nodiscard]] std::optional<ToolFormat> tool_format_in(std::string_view chat_template);
[[nodiscard]] std::string tool_format_names();  // "hermes, qwen, ..."

// Finds the end of a JSON object or list that arrives in pieces, by counting brackets outside of
// strings. Does not check that it is valid JSON.
class JsonEnd {
  public:
    // Returns one past the end, once it has arrived. `text` begins with the bracket and only grows
    // between calls.
    [[nodiscard]] std::optional<std::size_t> find(std::string_view text);

  private:
    std::size_t at_ = 0;  // scanned up to here
    std::int64_t depth_ = 0;
    bool is_in_string_ = false;
    bool is_escaped_ = false;
};

class ToolCallParser {
  public:
    struct Part {
        std::string text{};
        std::vector<ToolCall> calls{};
        std::vector<std::size_t> places{};  // calls[i] comes after this many bytes of `text`

        // Appends the next part.
        void append(Part next);
        // Passes on the runs of text, none empty, and the calls, in the order they were written.
        template <class OnText, class OnCall>
        void visit(OnText on_text, OnCall on_call) const {
            std::size_t begin = 0;
            for (std::size_t i = 0; i <= calls.size(); ++i) {
                const std::size_t end = i < calls.size() ? places[i] : text.size();
                if (end > begin) on_text(std::string_view(text).substr(begin, end - begin));
                if (i < calls.size()) on_call(calls[i]);
                begin = end;
            }
        }
    };

    explicit ToolCallParser(ToolFormat format) : format_(format) {}

    // Returns the text and calls that are decided so far. In `finish`, a last call may lack its
    // closing marker.
    [[nodiscard]] Part append(std::string_view piece);
    [[nodiscard]] Part finish();
    // Whether there was a call: then the choice's finish reason is tool_calls.
    [[nodiscard]] bool has_calls() const { return has_calls_; }

  private:
    enum class State : std::uint8_t {
        kStart,  // only white space so far, or since the last call
        kText,
        kCall,  // after a marker, which is kept in case no call follows
        kRest,  // the rest is text
    };
    enum class Step : std::uint8_t { kAgain, kNeedsMore };

    Step step(Part& part, bool is_end);
    Step step_text(Part& part, bool is_end);
    Step step_hermes(Part& part, bool is_end);
    Step step_llama3(Part& part, bool is_end);
    Step step_mistral(Part& part, bool is_end);
    [[nodiscard]] std::string_view marker() const;
    void begin_call(std::size_t len);
    void end_call(Part& part, std::vector<ToolCall> calls, std::size_t end);
    void give_up(Part& part, State next);

    ToolFormat format_;
    State state_ = State::kStart;
    std::string held_{};        // not reported yet
    std::string opening_{};     // the marker that began the call in `held_`
    JsonEnd json_end_{};        // finds the end of the JSON in `held_`
    std::size_t searched_ = 0;  // bytes of `held_` searched for the closing marker
    bool has_calls_ = false;
};

}  // namespace pitstop::http
