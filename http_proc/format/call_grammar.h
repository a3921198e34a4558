// Holds calls of tools to their schemas: makes, for the model's format of calls, what its output
// must match so that every call is of a tool of the request, with arguments that its schema
// accepts.
//
// No grammar has a special token. So the formats whose calls need none are held wherever a call
// begins; Mistral's, which begin with one, if they are forced; and those with one before the
// arguments if they are forced and tool_choice names the function.
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

// Reads a request's tools in any dialect's shape, in their order. Parts that are none are left out.
[[nodiscard]] std::vector<ToolSpec> tool_specs(const nlohmann::ordered_json& tools);

// Returns the format of a structural tag that the output matches; empty if nothing is held. After a
// forced call's opening (forced_call.h) it is the rest of that call and, unless `takes_one_call`,
// others; without one, any text with calls in it.
// Errors: kInvalidArgument names the tool, and what cannot be held.
[[nodiscard]] Result<std::string> call_grammar(
    const std::optional<ToolFormat>& format,
    const std::vector<ToolSpec>& tools,
    const std::optional<ForcedCall>& forced,
    bool takes_one_call
);

}  // namespace pitstop::http
