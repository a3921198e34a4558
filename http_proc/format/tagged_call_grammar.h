// Makes the grammar of a call's arguments from their schema, for formats that write keys and values
// between tags, such as Qwen3-Coder's and GLM's:
//
//   <parameter=city>               <arg_key>city</arg_key>
//   Paris                          <arg_value>Paris</arg_value>
//   </parameter>
//
// Texts have no quotes; other values are JSON. ToolCallParser uses the types in the schema to read
// the values back.
#pragma once

#include "base/result.h"

#include <nlohmann/json_fwd.hpp>

#include <string_view>

namespace pitstop::http {

// The tags of a parameter: `before_key` KEY `after_key` VALUE `after_value`.
struct ParameterTags {
    std::string_view before_key{};
    std::string_view after_key{};
    std::string_view after_value{};  // ends with value_end
    std::string_view value_end{};    // the tag that no value may contain
};
inline constexpr ParameterTags kQwen3CoderParameters{
    "\n<parameter=", ">\n", "\n</parameter>", "</parameter>"};

// Returns the properties of an object's schema, in order, as the format of a structural tag.
// Errors: kInvalidArgument, naming the keyword or parameter that tagged values cannot express.
[[nodiscard]] Result<nlohmann::ordered_json> tagged_arguments(
    const nlohmann::ordered_json& schema, const ParameterTags& tags = kQwen3CoderParameters
);

}  // namespace pitstop::http
