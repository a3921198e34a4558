// Checks what a route asks of a request before it reads the rest.
#pragma once

#include "base/result.h"
#include "http_proc/server/exchange.h"

#include <string>

namespace pitstop::http {

// Errors: kNotFound; a name that is not served would be answered by another model.
[[nodiscard]] Result<> check_model(Exchange& exchange, const std::string& model);

// OpenAI's and Anthropic's routes take JSON that says so.
[[nodiscard]] Result<> check_is_json(const Request& request);

}  // namespace pitstop::http
