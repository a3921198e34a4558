// Follows what an assistant says in one answer, as a chat's answer tells it: its text, and calls of
// tools where they are looked for.
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
        kOne,  // what comes after the first one is left out
    };

    // Without a format whatever comes is text. `opening` begins what the assistant says, and was
    // put after the prompt: it is told with the first that comes.
    explicit AssistantTurn(
        std::optional<ToolFormat> format = {}, Calls calls = Calls::kAny, std::string opening = {}
    )
        : format_(format), calls_(calls), opening_(std::move(opening)) {
        if (format) parser_.emplace(*format);
    }

    // Returns what a chunk says that is clear by now; takes its text.
    [[nodiscard]] ToolCallParser::Part append(messages::OutputChunk& chunk);
    [[nodiscard]] bool has_calls() const { return parser_ && parser_->has_calls(); }

    // Makes an id for a call: of nine letters and digits where the model's template takes no
    // other, else `prefix` and 24 digits.
    [[nodiscard]] std::string call_id(std::string_view prefix) const;

  private:
    std::optional<ToolFormat> format_;
    Calls calls_;
    std::string opening_{};
    std::optional<ToolCallParser> parser_{};
    bool is_over_ = false;
};

}  // namespace pitstop::http
