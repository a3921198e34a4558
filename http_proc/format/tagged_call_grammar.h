// Holds arguments that are pairs of a key and a value between tags to a schema. As Qwen3-Coder
// writes them, and as GLM does:
//
//   <parameter=city>               <arg_key>city</arg_key>
//   Paris                          <arg_value>Paris</arg_value>
//   </parameter>
//
// A text has no quotes, other values are JSON: ToolCallParser reads them back by the schema's
// types.
#pragma once

#include "base/result.h"

#include <nlohmann/json_fwd.hpp>

#include <string_view>

namespace pitstop::http {

// A parameter is `before_key` KEY `after_key` VALUE `after_value`.
struct ParameterTags {
    std::string_view before_key{};
    std::string_view after_key{};
    std::string_view after_value{};  // ends with the tag that no value may have
    std::string_view value_end{};    // that tag
};
inline constexpr ParameterTags kQwen3CoderParameters{
    "\n<parameter=", ">\n", "\n</parameter>", "</parameter>"};

// Returns the format of a structural tag: the parameters of the schema, an object's, in its order.
// Errors: kInvalidArgument names the keyword or the parameter that these arguments cannot follow.
[[nodiscard]] Result<nlohmann::ordered_json> tagged_arguments(
    const nlohmann::ordered_json& schema, const ParameterTags& tags = kQwen3CoderParameters
);

}  // namespace pitstop::http
