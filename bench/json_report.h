// The common parts of all reports: a head with program, date, commit, command and machine; and
// summaries of many values.
#pragma once

#include "base/result.h"
#include "bench/percentiles.h"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace pitstop::bench {

using Json = nlohmann::ordered_json;

[[nodiscard]] Json report_head(std::string_view program, const std::vector<std::string>& command);

[[nodiscard]] Json json_of(const Summary& summary);

// Writes the report and a newline; does nothing if `path` is empty. Errors: kUnavailable.
Result<> write_report(const std::string& path, const Json& report);

}  // namespace pitstop::bench
