// The checks that a route makes before it reads the whole request.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "http_proc/server/exchange.h"
#include "http_proc/server/task.h"

#include <span>
#include <string>
#include <string_view>

namespace pitstop::http {

// Sets `adapter` if `model` names an adapter: by the adapter's own name, or by SGLang's
// "MODEL:ADAPTER". The tree checks that the adapter is loaded. Errors: kNotFound if `adapter`
// already names another one.
[[nodiscard]] Result<> read_adapter_of(
    Exchange& exchange, const std::string& model, std::string& adapter
);
// The same for routes that generate nothing, where no request finds the adapter. Errors: also
// kNotFound if an adapter is named that is not loaded.
[[nodiscard]] Task<Result<>> find_adapter_of(
    Exchange& exchange, const std::string& model, std::string& adapter
);
// Names the requested model in the tree's error about an adapter that is not loaded.
[[nodiscard]] Error error_of_model(Exchange& exchange, const std::string& model, Error error);

// Checks tokens in fields that have no effect and are not sent. The tree checks all other tokens.
// Errors: kInvalidArgument for a token that is not in the vocabulary.
[[nodiscard]] Result<> check_tokens(
    Exchange& exchange, std::string_view field, std::span<const TokenId> ids
);

// Errors: the content type is not application/json, which OpenAI's and Anthropic's routes need.
[[nodiscard]] Result<> check_is_json(const Request& request);

}  // namespace pitstop::http
