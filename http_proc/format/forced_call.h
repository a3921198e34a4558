// Forces the tool call that a request's `tool_choice` asks for: the beginning of a call is appended
// to the prompt, and the model continues from it. Where call_grammar.h has a
// grammar, it holds the rest. Elsewhere only the beginning is certain: arguments need not follow a
// schema. A call that is cut off becomes text.
#pragma once

#include "base/result.h"
#include "http_proc/format/tool_formats.h"

#include <optional>
#include <string>

namespace pitstop::http {

struct ForcedCall {
    std::string function{};  // empty: any

    // Returns the beginning of such a call in the model's format. It ends where the model's tokens
    // end: before a space.
    [[nodiscard]] std::string opening(ToolFormat format) const;
};

// Errors: kInvalidArgument, naming the field, if a call is forced but no format to write
// it in is known.
[[nodiscard]] Result<> check_forced_call(
    const std::optional<ForcedCall>& forced, const std::optional<ToolFormat>& format
);

}  // namespace pitstop::http
