// Makes the grammar that a model's output must match so that its tool calls fit their schemas: each
// call names a tool of the request, and its arguments are accepted by the tool's schema. Such calls
// are *held* to their schemas.
//
// A special token matches no grammar. So calls are held wherever they begin if their format needs
// no special token. Mistral's begin with one: they are held if forced. Formats with one before the
// arguments are held if the call is forced and tool_choice names the function.
#pragma once

#include "base/result.h"
#include "http_proc/format/forced_call.h"
#include "http_proc/format/tool_formats.h"

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>
#include <vector>

namespace pitstop::http {

struct ToolSpec {
    std::string name{};
    std::string
        parameters{};        // its JSON schema, properties in the caller's order; empty: none given
    bool is_strict = false;  // calls that the model makes by itself are held to the schema, too
};

// Reads a request's tools in any dialect's shape, in their order. Skips entries that are no tool.
[[nodiscard]] std::vector<ToolSpec> tool_specs(const nlohmann::ordered_json& tools);

// Returns the output's grammar as the format of a structural tag; empty if nothing is held. After a
// forced call's opening (forced_call.h) this is the rest of that call, followed by other calls
// unless `takes_one_call` is set. Without a forced call it is any text with calls in it.
// Errors: kInvalidArgument names the tool, and what cannot be held.
[[nodiscard]] Result<std::string> call_grammar(
    const std::optional<ToolFormat>& format,
    const std::vector<ToolSpec>& tools,
    const std::optional<ForcedCall>& forced,
    bool takes_one_call
);

}  // namespace pitstop::http
