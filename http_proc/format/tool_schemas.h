// The types of tools' parameters, for formats that write values without quotes.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

// The most schemas and types that are read of one text. A text without $ref never has this many,
// but definitions can refer to each other in exponentially many ways.
constexpr int kSchemasMax = 100'000;

class ToolSchemas {
  public:
    ToolSchemas() = default;
    // Reads a request's tools in any dialect's shape. Skips entries that are no tool.
    explicit ToolSchemas(const nlohmann::json& tools);

    // Returns the types that a value may have ("string", "null", ...); null if none is known.
    [[nodiscard]] const std::vector<std::string>* types_of(
        const std::string& tool, const std::string& parameter
    ) const;

  private:
    std::map<std::string, std::map<std::string, std::vector<std::string>>> types_{};
};

// Returns the schema that this one refers to by $ref; null if none in `root`.
[[nodiscard]] const nlohmann::ordered_json* definition_of(
    const nlohmann::ordered_json& root, const nlohmann::ordered_json& schema
);

// Returns the types that a value of this schema may have; empty if the schema does not say. `root`
// has the definitions that the schema may refer to. `num_left` is the number of schemas and types
// that may still be read; each one read reduces it, and at 0 the result is empty.
[[nodiscard]] std::vector<std::string> types_of_schema(
    const nlohmann::ordered_json& root, const nlohmann::ordered_json& schema, int& num_left
);

}  // namespace pitstop::http
