// Parses JSON whose objects keep the order of their members, as templates and schemas require.
//
// Parsing takes time in proportion to the text. In nlohmann's own parser, adding or finding a
// member of an ordered object compares its name with all members before it.
#pragma once

#include "base/result.h"

#include <nlohmann/json_fwd.hpp>

#include <string_view>

namespace pitstop::http {

// If members have the same name, the last value counts, in the place of the first. Errors:
// kMalformed (not JSON; deeper than kJsonDepthMax).
[[nodiscard]] Result<nlohmann::ordered_json> parse_ordered_json(std::string_view text);

}  // namespace pitstop::http
