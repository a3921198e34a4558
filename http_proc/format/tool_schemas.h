// The types of tools' parameters, for formats that write values without quotes.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

class ToolSchemas {
  public:
    ToolSchemas() = default;
    // Reads a request's tools in any dialect's shape. Parts that are none are left out.
    explicit ToolSchemas(const nlohmann::json& tools);

    // Returns the types that a value may have ("string", "null", ...); null if none is known.
    [[nodiscard]] const std::vector<std::string>* types_of(
        const std::string& tool, const std::string& parameter
    ) const;

  private:
    std::map<std::string, std::map<std::string, std::vector<std::string>>> types_{};
};

}  // namespace pitstop::http
