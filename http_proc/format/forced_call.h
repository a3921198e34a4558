// Forces the tool call that a request's `tool_choice` asks for: the prompt ends with the beginning
// of a call, and the model continues it. The output matches a grammar if call_grammar.h has one for
// the format. Otherwise the arguments may not fit the schema, and a call that is cut off becomes
// text.
#pragma once

#include "base/result.h"
#include "http_proc/format/tool_formats.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::http {

struct ForcedCall {
    std::string function{};       // empty: any function
    std::int64_t num_before = 0;  // calls that the conversation had before this one

    // Returns the beginning of such a call in the model's format. It ends before a space, at a
    // boundary of the model's tokens.
    [[nodiscard]] std::string opening(ToolFormat format) const;
};

// Returns how many calls the messages of a chat template's variables have.
[[nodiscard]] std::int64_t num_calls_in(std::string_view variables);

// Errors: kInvalidArgument, naming the field, if a call is forced but no format of calls is
// known.
[[nodiscard]] Result<> check_forced_call(
    const std::optional<ForcedCall>& forced, const std::optional<ToolFormat>& format
);

}  // namespace pitstop::http
