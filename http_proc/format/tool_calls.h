// Tells text and calls of tools apart in what a model writes, as the text comes.
//
//   ToolCallParser parser(ToolFormat::kHermes);
//   for (each piece of output) use(parser.append(piece));
//   use(parser.finish());
//
// A call is told when it is whole, so what is malformed or cut off never looks like one: it stays
// text, as it was written. Text that may become a marker is held back until it is clear.
//
// Source: the parsers of these names in SGLang (function_call/) and in vLLM (tool_parsers/).
// Bounded: by the output; a piece costs time in its own length, whatever is held back.
#pragma once

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
//             {"name": N, "parameters": {...}}, with ; or , or nothing between them
//   kMistral  [TOOL_CALLS] and a list [{"name": N, "arguments": {...}}, ...], or N{...} per marker
// In each, `arguments` and `parameters` mean the same.
enum class ToolFormat : std::uint8_t { kHermes, kLlama3, kMistral };

// Names formats as SGLang's and vLLM's --tool-call-parser do; tool_format_named() returns nothing
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
[[nodiscard]] std::string tool_format_names();  // "hermes, qwen, ..."

struct ToolCall {
    std::string name{};
    std::string arguments{};  // JSON: an object, members in the model's order

    friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

// Finds where a JSON object or list ends that comes piece by piece: brackets are counted, outside
// of strings. Whether it is JSON is another question.
class JsonEnd {
  public:
    // Returns one past the end, if that is there. `text` begins with the bracket and only grows
    // between calls.
    [[nodiscard]] std::optional<std::size_t> find(std::string_view text);

  private:
    std::size_t at_ = 0;  // up to here it was looked at
    std::int64_t depth_ = 0;
    bool is_in_string_ = false;
    bool is_escaped_ = false;
};

class ToolCallParser {
  public:
    struct Part {
        std::string text{};
        std::vector<ToolCall> calls{};
        std::vector<std::size_t> places{};  // calls[i] comes after so many bytes of `text`

        // Adds what follows.
        void append(Part next);
        // Gives the runs of text, none of them empty, and the calls, in the order they were
        // written in.
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

    // Returns what is clear by now. A last call in `finish` may lack its closing marker.
    [[nodiscard]] Part append(std::string_view piece);
    [[nodiscard]] Part finish();
    // There was a call: what a choice then ends with is tool_calls.
    [[nodiscard]] bool has_calls() const { return has_calls_; }

  private:
    enum class State : std::uint8_t {
        kStart,  // white space alone so far, or since the last call
        kText,
        kCall,  // after a marker, which is kept for the case that it is none
        kRest,  // whatever comes is text
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
    std::string held_{};        // not told yet
    std::string opening_{};     // the marker that the call in `held_` began with
    JsonEnd json_end_{};        // finds where the JSON in `held_` ends
    std::size_t searched_ = 0;  // bytes of `held_` searched for the closing marker
    bool has_calls_ = false;
};

}  // namespace pitstop::http
