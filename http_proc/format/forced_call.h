// Makes the call of a tool that a request's `tool_choice` asks for, whatever the model would say.
// There are no grammars: the beginning of a call is put after the prompt, and the model goes on
// from it. So the function is the one that was named, and what follows is the model's: arguments
// are held to no schema, and a call that it does not bring to its end is text, as any such.
#pragma once

#include "base/result.h"
#include "http_proc/format/tool_calls.h"

#include <optional>
#include <string>

namespace pitstop::http {

struct ForcedCall {
    std::string function{};  // empty: any

    // Returns what a model writes at the beginning of such a call. It ends where a token does in
    // what models write: before a space.
    [[nodiscard]] std::string opening(ToolFormat format) const;
};

// Errors: kInvalidArgument, naming the field: a call is forced, and no format to write it in is
// known.
[[nodiscard]] Result<> check_forced_call(
    const std::optional<ForcedCall>& forced, const std::optional<ToolFormat>& format
);

}  // namespace pitstop::http
