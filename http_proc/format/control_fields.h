// Reads the fields of a control call from its query parameters and its JSON body. Every field has a
// default: no body, an empty body and {} mean the same. Unknown members are ignored.
#pragma once

#include "base/result.h"
#include "http_proc/format/message.h"

#include <nlohmann/json_fwd.hpp>

namespace pitstop::http {

// Decides which value counts if a field is in both.
enum class Winner { kQuery, kBody };

// Returns an object for a FieldReader. A repeated parameter ("tags=a&tags=b") becomes an array.
// Errors: kMalformed if the body is not a JSON object.
[[nodiscard]] Result<nlohmann::json> control_fields(
    const Request& request, Winner winner = Winner::kQuery
);

}  // namespace pitstop::http
