// Holds arguments that are written as Qwen3-Coder writes them to a schema:
//
//   <parameter=city>
//   Paris
//   </parameter>
//
// A text has no quotes, other values are JSON: ToolCallParser reads them back by the schema's
// types.
#pragma once

#include "base/result.h"

#include <nlohmann/json_fwd.hpp>

namespace pitstop::http {

// Returns the format of a structural tag: the parameters of the schema, an object's, in its order.
// Errors: kInvalidArgument names the keyword or the parameter that these arguments cannot follow.
[[nodiscard]] Result<nlohmann::ordered_json> tagged_arguments(const nlohmann::ordered_json& schema);

}  // namespace pitstop::http
