// Makes the grammar that holds tool calls to their schemas: a call that matches it names a tool of
// the request, and the tool's schema accepts the call's arguments. The text calls such calls
// *held*.
//
// No grammar matches a special token. So calls are held wherever they begin if their format needs
// no special token. Mistral's calls begin with one: they are held if forced. In formats with a
// special token before the arguments, a forced call is held if tool_choice names the function.
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
    bool is_strict = false;  // a call is held even if no call is forced
};

// Reads a request's tools in any dialect's shape, in order. Skips entries that are not tools.
[[nodiscard]] std::vector<ToolSpec> tool_specs(const nlohmann::ordered_json& tools);

// Returns the output's grammar as the format of a structural tag; empty if no call is held. For a
// forced call, the grammar covers the part after the call's opening (forced_call.h), and later
// calls unless `takes_one_call` is set. Without a forced call, it accepts any text with calls in
// it. Errors: kInvalidArgument, naming the tool and the part of its schema that cannot be held.
[[nodiscard]] Result<std::string> call_grammar(
    const std::optional<ToolFormat>& format,
    const std::vector<ToolSpec>& tools,
    const std::optional<ForcedCall>& forced,
    bool takes_one_call
);

}  // namespace pitstop::http
