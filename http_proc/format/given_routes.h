// Reads the routes that a request contains ("routed_experts"), in the forms in which answers have
// them (routed_experts.h): base64 of int32, or {"data", "shape", "dtype"}, whose shape is optional.
#pragma once

#include "base/result.h"
#include "messages/routes.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::http {

// The ids as given; their layers and experts depend on the model.
struct GivenRoutes {
    std::vector<std::uint8_t> bytes{};  // little-endian
    std::int64_t id_bytes = 4;          // 1, 2 or 4
    std::optional<std::vector<std::int64_t>> shape{};
};

// Errors: kInvalidArgument, with what is accepted.
[[nodiscard]] Result<GivenRoutes> given_routes(const nlohmann::json& value);

// Converts the ids to the bus's form, after checking them against the model's `shape`: absent if
// the model has no experts. Errors: kInvalidArgument, with the token, layer and entry of an id that
// is no expert's.
[[nodiscard]] Result<messages::BroughtRoutes> brought_routes(
    const GivenRoutes& given, const std::optional<messages::RouteShape>& shape
);

}  // namespace pitstop::http
