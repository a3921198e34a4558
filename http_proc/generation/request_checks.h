// Checks what a route asks of a request before it reads the rest.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "http_proc/server/exchange.h"

#include <span>
#include <string>
#include <string_view>

namespace pitstop::http {

// Errors: kNotFound; a name that is not served would be answered by another model.
[[nodiscard]] Result<> check_model(Exchange& exchange, const std::string& model);

// Checks tokens that a request names to no effect: the tree never sees them, and looks at all
// others itself. Errors: kInvalidArgument, a token that the model has not.
[[nodiscard]] Result<> check_tokens(
    Exchange& exchange, std::string_view field, std::span<const TokenId> ids
);

// OpenAI's and Anthropic's routes take JSON that says so.
[[nodiscard]] Result<> check_is_json(const Request& request);

}  // namespace pitstop::http
