// Reads and writes JSON in the tests of a rank. One source compiles this for all tests; in each
// test it would take a second.
#pragma once

#include "base/ids.h"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

using Json = nlohmann::json;

// Reads a file. A relative path begins at the sources.
[[nodiscard]] Json load_json(const std::string& path);

[[nodiscard]] Json parse_json(std::string_view text);
[[nodiscard]] std::string text_of(const Json& json);

[[nodiscard]] std::vector<TokenId> ids_of(const Json& json);

}  // namespace pitstop::tp_worker
