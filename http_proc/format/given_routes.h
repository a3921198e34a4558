// Reads the routes in a request ("routed_experts"), in the forms that answers use
// (routed_experts.h): base64 of int32, or {"data", "shape", "dtype"} with an optional shape.
#pragma once

#include "base/result.h"
#include "messages/routes.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::http {

// The ids as sent. The model determines which layers and experts they mean.
struct GivenRoutes {
    std::vector<std::uint8_t> bytes{};  // little-endian
    std::int64_t id_bytes = 4;          // 1, 2 or 4
    std::optional<std::vector<std::int64_t>> shape{};
};

// Errors: kInvalidArgument; the text lists the accepted forms.
[[nodiscard]] Result<GivenRoutes> given_routes(const nlohmann::json& value);

// Checks the ids against the model's `shape` and converts them to the bus's form. `shape` is absent
// if the model has no experts. Errors: kInvalidArgument, naming the token, layer and entry of an id
// that is no expert's.
[[nodiscard]] Result<messages::BroughtRoutes> brought_routes(
    const GivenRoutes& given, const std::optional<messages::RouteShape>& shape
);

}  // namespace pitstop::http
