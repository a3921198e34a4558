#include "http_proc/control/adapters.h"

#include "http_proc/control/control.h"
#include "messages/enum_named.h"
#include "messages/status.h"

#include <algorithm>
#include <utility>

namespace pitstop::http::control {

Result<std::string> read_adapter_name(Exchange& exchange, FieldReader& fields) {
    std::string name;
    fields.read("lora_name", name);
    if (name.empty() && !fields.error()) fields.fail("lora_name", "a name, not empty");
    if (fields.error()) return *fields.error();
    if (auto problem = messages::invalid_adapter_name(name))
        return Error{ErrorCode::kInvalidArgument, *problem};
    // The door refuses the names that it knows; this process may serve the model under others.
    const std::vector<std::string>& served = exchange.server().options().model_names;
    if (auto problem = messages::invalid_adapter_name(name, served))
        return Error{ErrorCode::kInvalidArgument, *problem};
    return name;
}

messages::AdapterPolicy read_adapter_policy(FieldReader& fields) {
    std::string name;
    fields.read("adapter_policy", name);
    const auto policy = messages::enum_named<messages::AdapterPolicy>(name);
    if (!name.empty() && !policy) fields.fail("adapter_policy", "finish, keep or recompute");
    return policy.value_or(messages::AdapterPolicy::kFinish);
}

Task<Result<messages::UpdateReply>> load_adapter(Exchange& exchange, messages::UpdateSpec spec) {
    messages::UpdateWeights call;
    call.update = std::move(spec);
    std::string& path = call.update.source.path;
    if (!path.empty()) path = absolute_path(path);
    Result<messages::UpdateReply> reply = co_await exchange.tree().call(std::move(call), kTimeout);
    co_return checked(std::move(reply));
}

Task<Result<messages::AdapterReply>> unload_adapter(Exchange& exchange, std::string name) {
    messages::UnloadAdapter call;
    call.name = std::move(name);
    Result<messages::AdapterReply> reply = co_await exchange.tree().call(std::move(call), kTimeout);
    co_return checked(std::move(reply));
}

Task<Result<std::vector<messages::AdapterStatus>>> adapters(Exchange& exchange) {
    Result<messages::StatusReply> status = co_await exchange.tree().call(messages::Status{});
    if (!status) co_return status.error();
    co_return messages::loaded_adapters(*status);
}

Task<Result<bool>> is_loaded(Exchange& exchange, std::string name) {
    const Result<std::vector<messages::AdapterStatus>> all = co_await adapters(exchange);
    if (!all) co_return all.error();
    co_return std::ranges::any_of(*all, [&](const messages::AdapterStatus& each) {
        return each.adapter.name == name;
    });
}

}  // namespace pitstop::http::control
