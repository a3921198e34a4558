// Forces the tool call that a request's `tool_choice` asks for: the beginning of a call is appended
// to the prompt, and the model continues it. The rest matches a grammar if call_grammar.h has one
// for the format. Otherwise arguments need not fit a schema, and a call that is cut off becomes
// text.
#pragma once

#include "base/result.h"
#include "http_proc/format/tool_formats.h"

#include <optional>
#include <string>

namespace pitstop::http {

struct ForcedCall {
    std::string function{};  // empty: any

    // Returns the beginning of such a call in the model's format, up to a boundary of the model's
    // tokens: before a space.
    [[nodiscard]] std::string opening(ToolFormat format) const;
};

// Errors: kInvalidArgument, naming the field, if a call is forced but no format to write
// it in is known.
[[nodiscard]] Result<> check_forced_call(
    const std::optional<ForcedCall>& forced, const std::optional<ToolFormat>& format
);

}  // namespace pitstop::http
