// The types of tool parameters, for formats that write values without quotes.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

// The most schemas and types that are read per request. A body without $ref never has so many, but
// definitions can refer to each other in exponentially many ways.
constexpr int kSchemasMax = 100'000;

class ToolSchemas {
  public:
    ToolSchemas() = default;
    // Reads a request's tools in any dialect's shape. Skips entries that are not tools.
    explicit ToolSchemas(const nlohmann::json& tools);

    // Returns the types that a value may have ("string", "null", ...); null if they are unknown.
    [[nodiscard]] const std::vector<std::string>* types_of(
        const std::string& tool, const std::string& parameter
    ) const;

  private:
    std::map<std::string, std::map<std::string, std::vector<std::string>>> types_{};
};

// Returns the schema in `root` to which this one refers by $ref; null if there is none.
[[nodiscard]] const nlohmann::ordered_json* definition_of(
    const nlohmann::ordered_json& root, const nlohmann::ordered_json& schema
);

// Returns the types that a value of this schema may have; empty if the schema names none. `root`
// has the definitions to which the schema may refer. `num_left`: how many schemas and types may
// still be read; each one read reduces it, and at 0 the result is empty.
[[nodiscard]] std::vector<std::string> types_of_schema(
    const nlohmann::ordered_json& root, const nlohmann::ordered_json& schema, int& num_left
);

}  // namespace pitstop::http
