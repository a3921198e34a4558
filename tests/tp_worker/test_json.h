// The JSON that the tests of a rank read and write. One source does so for all: it takes a second
// of a compiler's time in each.
#pragma once

#include "base/ids.h"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

using Json = nlohmann::json;

// Reads a file. A path that does not begin at the root begins where the sources are.
[[nodiscard]] Json load_json(const std::string& path);

[[nodiscard]] Json parse_json(std::string_view text);
[[nodiscard]] std::string text_of(const Json& json);

[[nodiscard]] std::vector<TokenId> ids_of(const Json& json);

}  // namespace pitstop::tp_worker
