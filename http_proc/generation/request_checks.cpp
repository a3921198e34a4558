#include "http_proc/generation/request_checks.h"

#include "base/utf8.h"
#include "messages/adapters.h"
#include "messages/status.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace pitstop::http {

namespace {

std::string text_of_unknown(const std::string& model) {
    return fmt::format("The model `{}` does not exist", utf8_prefix(model, 128));
}

// Returns the names of the served model and adapters, for the end of a refusal.
std::string text_of_served(Exchange& exchange) {
    std::string names = fmt::format("`{}`", exchange.tree().hello().model);
    for (const std::string& name : exchange.server().options().model_names) {
        if (name != exchange.tree().hello().model) names += fmt::format(", `{}`", name);
    }
    return "; served here: " + names;
}

Error error_of_unknown(Exchange& exchange, const std::string& model) {
    return {ErrorCode::kNotFound, text_of_unknown(model) + text_of_served(exchange)};
}

}  // namespace

Result<> read_adapter_of(Exchange& exchange, const std::string& model, std::string& adapter) {
    if (exchange.server().serves(model)) return Ok{};
    // A served name may have colons of its own.
    std::size_t colon = model.find(':');
    while (colon != std::string::npos && !exchange.server().serves(model.substr(0, colon)))
        colon = model.find(':', colon + 1);
    const std::string named = colon == std::string::npos ? model : model.substr(colon + 1);
    const bool is_other = !adapter.empty() && adapter != named;
    if (is_other || messages::invalid_adapter_name(named)) return error_of_unknown(exchange, model);
    adapter = named;
    return Ok{};
}

Task<Result<>> find_adapter_of(Exchange& exchange, const std::string& model, std::string& adapter) {
    Result<> named = read_adapter_of(exchange, model, adapter);
    if (!named || adapter.empty()) co_return named;
    const Result<messages::StatusReply> status = co_await exchange.tree().call(messages::Status{});
    if (!status) co_return status.error();
    const auto is_meant = [&](const messages::AdapterStatus& each) {
        return each.adapter.name == adapter;
    };
    if (std::ranges::any_of(messages::loaded_adapters(*status), is_meant)) co_return Ok{};
    Error error{ErrorCode::kNotFound, fmt::format("no adapter '{}' is loaded", adapter)};
    co_return error_of_model(exchange, model, std::move(error));
}

Error error_of_model(Exchange& exchange, const std::string& model, Error error) {
    if (error.code == ErrorCode::kNotFound && !exchange.server().serves(model))
        error.message = text_of_unknown(model) + ": " + error.message + text_of_served(exchange);
    return error;
}

Result<> check_tokens(Exchange& exchange, std::string_view field, std::span<const TokenId> ids) {
    const std::int64_t vocab_size = exchange.tree().hello().vocab_size;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (raw(ids[i]) >= 0 && raw(ids[i]) < vocab_size) continue;
        return make_error(
            ErrorCode::kInvalidArgument,
            "{}[{}] is token {}; the model has tokens [0, {})",
            field,
            i,
            raw(ids[i]),
            vocab_size
        );
    }
    return Ok{};
}

Result<> check_is_json(const Request& request) {
    if (is_json(request)) return Ok{};
    return Error{
        ErrorCode::kInvalidArgument, "the content type of a request must be application/json"};
}

}  // namespace pitstop::http
