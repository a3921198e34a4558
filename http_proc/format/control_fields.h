// Reads the fields of a control call, wherever they were put: query parameters and a JSON body
// alike. Every field has a default, so no body, an empty one and {} are the same; members that
// nobody knows are ignored.
#pragma once

#include "base/result.h"
#include "http_proc/format/message.h"

#include <nlohmann/json_fwd.hpp>

namespace pitstop::http {

// Says which of two counts where a field is in both.
enum class Winner { kQuery, kBody };

// Makes an object for a FieldReader. A parameter that is given several times ("tags=a&tags=b") is
// an array. Errors: kMalformed, the body is something else than a JSON object.
[[nodiscard]] Result<nlohmann::json> control_fields(
    const Request& request, Winner winner = Winner::kQuery
);

}  // namespace pitstop::http
