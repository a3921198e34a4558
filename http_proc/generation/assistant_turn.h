// Follows the assistant's turn in one answer: its text, and tool calls if these are looked for.
#pragma once

#include "http_proc/format/tool_calls.h"
#include "messages/generation.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::http {

class AssistantTurn {
  public:
    enum class Calls {
        kAny,
        kOne,  // the output after the first call is dropped
    };

    // Without a format all output is text. `opening` begins the turn and was appended to the
    // prompt: it is passed on with the first output.
    explicit AssistantTurn(
        std::optional<ToolFormat> format = {}, Calls calls = Calls::kAny, std::string opening = {}
    )
        : format_(format), calls_(calls), opening_(std::move(opening)) {
        if (format) parser_.emplace(*format);
    }

    // Adds a chunk's text, and returns the text and calls that are decided so far.
    [[nodiscard]] ToolCallParser::Part append(messages::OutputChunk& chunk);
    [[nodiscard]] bool has_calls() const { return parser_ && parser_->has_calls(); }

    // Makes an id for a call: nine letters and digits if the model's template accepts no other,
    // else `prefix` and 24 digits.
    [[nodiscard]] std::string call_id(std::string_view prefix) const;

  private:
    std::optional<ToolFormat> format_;
    Calls calls_;
    std::string opening_{};
    std::optional<ToolCallParser> parser_{};
    bool is_over_ = false;
};

}  // namespace pitstop::http
