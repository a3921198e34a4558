// Parses JSON whose objects keep the order of their members, as templates and schemas need it.
//
// Parsing takes time in proportion to the text. nlohmann's own parser compares each member of an
// ordered object with all members before it, and so does a lookup of a member.
#pragma once

#include "base/result.h"

#include <nlohmann/json_fwd.hpp>

#include <string_view>

namespace pitstop::http {

// Of members with the same name, the last value counts, at the first one's place. Errors:
// kMalformed (not JSON; deeper than kJsonDepthMax).
[[nodiscard]] Result<nlohmann::ordered_json> parse_ordered_json(std::string_view text);

}  // namespace pitstop::http
