// Reads the routes that a request brings ("routed_experts"), in the forms in which answers have
// them (routed_experts.h): base64 of int32, or {"data", "shape", "dtype"}, whose shape may be left
// out.
#pragma once

#include "base/result.h"
#include "messages/routes.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::http {

// As they were given: what they are of, only the model says.
struct GivenRoutes {
    std::vector<std::uint8_t> bytes{};  // little-endian
    std::int64_t id_bytes = 4;          // 1, 2 or 4
    std::optional<std::vector<std::int64_t>> shape{};
};

// Errors: kInvalidArgument, what is accepted.
[[nodiscard]] Result<GivenRoutes> given_routes(const nlohmann::json& value);

// Makes rows of them, as the model's experts are numbered. `shape` is the model's: nothing where it
// has no experts. Errors: kInvalidArgument, with token, layer and entry where one is no expert.
[[nodiscard]] Result<messages::BroughtRoutes> brought_routes(
    const GivenRoutes& given, const std::optional<messages::RouteShape>& shape
);

}  // namespace pitstop::http
