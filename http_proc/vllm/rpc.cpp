// Serves vLLM's collective_rpc, the world's size and the version. As there are no Python workers to
// call, only methods about weights exist, including those of SkyRL's worker extension.
#include "base/utf8.h"
#include "http_proc/control/control.h"
#include "http_proc/format/control_fields.h"
#include "http_proc/format/json_body.h"
#include "http_proc/vllm/answers.h"
#include "http_proc/vllm/routes.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace pitstop::http {
namespace {

// Accepts the kwargs weights_path (absent: the model of the start) and weight_version. Without a
// pause, running requests keep their KV, as in vLLM; each token names the version that made it.
Task<Response> reload_weights(Exchange& exchange, const nlohmann::json& kwargs) {
    FieldReader fields(kwargs, "kwargs");
    control::DiskUpdate update;
    update.path = exchange.tree().hello().model_path;
    update.clears_cache = false;
    update.kv_policy = messages::KvPolicy::kKeep;
    bool is_checkpoint_format = true;
    fields.read("weights_path", update.path);
    fields.read("is_checkpoint_format", is_checkpoint_format);
    fields.read("weight_version", update.label);
    if (!is_checkpoint_format)
        fields.refuse(
            "is_checkpoint_format",
            "false is not supported: tensors must have the checkpoint's names"
        );
    if (fields.error()) co_return vllm_failure(*fields.error());
    const Result<messages::UpdateReply> reply =
        co_await control::update_from_disk(exchange, std::move(update));
    if (!reply) co_return vllm_failure(reply.error());
    co_return rpc_done(exchange);
}

constexpr std::string_view kMethods =
    "reload_weights, update_weights, update_weights_from_ipc, and SkyRL's "
    "skyrl_start_weight_update, update_weights_nccl, update_weights_ipc and "
    "skyrl_finish_weight_update";

Task<Response> collective_rpc(Exchange& exchange) {
    FieldReader fields(parse_json_object(exchange.request().body));
    std::string method;
    fields.read("method", method);
    if (method.empty() && !fields.error()) fields.fail("method", kMethods);
    const nlohmann::json* kwargs = fields.find("kwargs");
    if (kwargs != nullptr && !kwargs->is_object()) fields.fail("kwargs", "an object");
    if (fields.error()) co_return vllm_failure(*fields.error());
    const nlohmann::json none = nlohmann::json::object();
    const nlohmann::json& named = kwargs != nullptr ? *kwargs : none;
    // Only methods named update_weights* bring parts of a version.
    if (!method.starts_with("update_weights")) exchange.set_known_to_tree();
    if (method == "reload_weights") co_return co_await reload_weights(exchange, named);
    if (method == "update_weights" || method == "update_weights_nccl" ||
        method == "update_weights_ipc")
        co_return co_await update_weights_by_rpc(exchange, named);
    if (method == "skyrl_start_weight_update")
        co_return co_await start_update_by_rpc(exchange, named);
    if (method == "skyrl_finish_weight_update")
        co_return co_await finish_update_by_rpc(exchange, named);
    if (method == "update_weights_from_ipc")
        co_return co_await update_from_ipc_by_rpc(exchange, fields.find("args"));
    co_return vllm_failure(make_error(
        ErrorCode::kUnsupported,
        "Call to {} method failed: there is no such method; accepted are {}",
        utf8_prefix(method, 64),
        kMethods
    ));
}

Task<Response> get_world_size(Exchange& exchange) {
    FieldReader fields(control_fields(exchange.request()));
    bool includes_dp = true;
    fields.read("include_dp", includes_dp);
    if (fields.error()) co_return vllm_failure(*fields.error());
    const messages::HelloReply& hello = exchange.tree().hello();
    co_return Response::json(200, {{"world_size", hello.tp * (includes_dp ? hello.replicas : 1)}});
}

Task<Response> version(Exchange& exchange) {
    const std::string& server = exchange.tree().hello().server;  // "pitstop 0.1.0"
    co_return Response::json(200, {{"version", server.substr(server.rfind(' ') + 1)}});
}

}  // namespace

void add_vllm_rpc(Router& router) {
    router.add_weights(Dialect::kVllm, {{"POST", "/collective_rpc", collective_rpc}});
    router.add(
        Dialect::kVllm,
        Access::kData,
        {{"GET", "/get_world_size", get_world_size}, {"GET", "/version", version}}
    );
}

}  // namespace pitstop::http
