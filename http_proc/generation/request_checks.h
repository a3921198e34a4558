// A route's checks before it reads the rest of a request.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "http_proc/server/exchange.h"
#include "http_proc/server/task.h"

#include <span>
#include <string>
#include <string_view>

namespace pitstop::http {

// Errors: kNotFound if the model is not served: another model would answer.
[[nodiscard]] Result<> check_model(Exchange& exchange, const std::string& model);

// A request may name an adapter in place of its model: by the adapter's own name, or by SGLang's
// "MODEL:ADAPTER". Sets `adapter` to it; the tree checks whether it is loaded. Errors: kNotFound:
// `adapter` is already another.
[[nodiscard]] Result<> read_adapter_of(
    Exchange& exchange, const std::string& model, std::string& adapter
);
// Adds the model that the caller named to the tree's error that no such adapter is loaded.
[[nodiscard]] Error error_of_model(Exchange& exchange, const std::string& model, Error error);

// Checks tokens in fields that have no effect, because the tree never sees these. The tree checks
// all other tokens. Errors: kInvalidArgument for a token that the model lacks.
[[nodiscard]] Result<> check_tokens(
    Exchange& exchange, std::string_view field, std::span<const TokenId> ids
);

// OpenAI's and Anthropic's routes accept only JSON that is declared as such.
[[nodiscard]] Result<> check_is_json(const Request& request);

}  // namespace pitstop::http
