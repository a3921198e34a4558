// Serves /v1/models: the served model, under each of its names, and its adapters.
#include "http_proc/openai/routes.h"
#include "http_proc/server/errors.h"
#include "messages/status.h"

#include <nlohmann/json.hpp>

namespace pitstop::http {
namespace {

nlohmann::ordered_json model_card(Exchange& exchange, const std::string& name) {
    const messages::HelloReply& hello = exchange.tree().hello();
    return {
        {"id", name},
        {"object", "model"},
        {"created", exchange.server().start_time()},
        {"owned_by", "pitstop"},
        {"root", hello.model_path},
        {"parent", nullptr},
        {"max_model_len", hello.context_len},
        {"permission", nlohmann::ordered_json::array()}};
}

Task<Result<std::vector<messages::AdapterStatus>>> adapters_of(Exchange& exchange) {
    Result<messages::StatusReply> status = co_await exchange.tree().call(messages::Status{});
    if (!status) co_return status.error();
    co_return messages::loaded_adapters(*status);
}

nlohmann::ordered_json adapter_card(Exchange& exchange, const messages::AdapterStatus& adapter) {
    nlohmann::ordered_json card = model_card(exchange, adapter.adapter.name);
    card["root"] = adapter.path.empty() ? "__tensor__" : adapter.path;
    card["parent"] = exchange.tree().hello().model;
    card["adapter_version"] = raw(adapter.adapter.version);
    card["adapter_digest"] = adapter.adapter.digest;
    card["adapter_config_digest"] = adapter.config_digest;
    return card;
}

Task<Response> models(Exchange& exchange) {
    auto cards =
        nlohmann::ordered_json::array({model_card(exchange, exchange.tree().hello().model)});
    for (const std::string& name : exchange.server().options().model_names) {
        if (name != exchange.tree().hello().model) cards.push_back(model_card(exchange, name));
    }
    const Result<std::vector<messages::AdapterStatus>> adapters = co_await adapters_of(exchange);
    if (!adapters) co_return error_response(Dialect::kOpenAi, adapters.error());
    for (const messages::AdapterStatus& adapter : *adapters)
        cards.push_back(adapter_card(exchange, adapter));
    co_return Response::json(200, {{"object", "list"}, {"data", std::move(cards)}});
}

Task<Response> model(Exchange& exchange) {
    const std::string& name = exchange.request().rest;
    if (!name.empty() && exchange.server().serves(name))
        co_return Response::json(200, model_card(exchange, name));
    const Result<std::vector<messages::AdapterStatus>> adapters = co_await adapters_of(exchange);
    if (!adapters) co_return error_response(Dialect::kOpenAi, adapters.error());
    for (const messages::AdapterStatus& adapter : *adapters) {
        if (adapter.adapter.name == name)
            co_return Response::json(200, adapter_card(exchange, adapter));
    }
    co_return error_response(
        Dialect::kOpenAi, 404, fmt::format("The model '{}' does not exist", name)
    );
}

}  // namespace

void add_openai_models(Router& router) {
    router.add(
        Dialect::kOpenAi,
        Access::kData,
        {{"GET", "/v1/models", models}, {"GET", "/v1/models/*", model}}
    );
}

}  // namespace pitstop::http
