// Serves vLLM's routes for adapters, whose answers are plain text, and SkyRL's. A request names an
// adapter as its model.
#include "http_proc/control/adapters.h"

#include "http_proc/format/json_body.h"
#include "http_proc/vllm/answers.h"
#include "http_proc/vllm/routes.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <utility>

namespace pitstop::http {
namespace {

struct Loading {
    std::string name{};
    std::string path{};
    bool is_in_place = false;
    messages::AdapterPolicy policy = messages::AdapterPolicy::kFinish;
};

Result<Loading> read_loading(Exchange& exchange) {
    FieldReader fields(parse_json_object(exchange.request().body));
    Loading loading;
    bool is_packed = false;  // not needed: the names of packed experts' tensors differ
    fields.read("lora_path", loading.path);
    fields.read("load_inplace", loading.is_in_place);
    fields.read("is_3d_lora_weight", is_packed);
    loading.policy = control::read_adapter_policy(fields);
    if (loading.path.empty() && !fields.error()) fields.fail("lora_path", "a directory");
    ASSIGN_OR_RETURN(loading.name, control::read_adapter_name(exchange, fields));
    return loading;
}

Task<Result<messages::UpdateReply>> load_from(Exchange& exchange, Loading loading) {
    messages::UpdateSpec spec;
    spec.adapter = std::move(loading.name);
    spec.adapter_policy = loading.policy;
    spec.source.path = std::move(loading.path);
    co_return co_await control::load_adapter(exchange, std::move(spec));
}

Task<Response> load(Exchange& exchange) {
    const Result<Loading> loading = read_loading(exchange);
    if (!loading) co_return vllm_failure(loading.error());
    if (!loading->is_in_place) {
        const Result<bool> is_there = co_await control::is_loaded(exchange, loading->name);
        if (!is_there) co_return vllm_failure(is_there.error());
        if (*is_there) {
            co_return vllm_failure(make_error(
                ErrorCode::kInvalidArgument,
                "The lora adapter '{}' has already been loaded. If you want to load the adapter in "
                "place, set 'load_inplace' to True.",
                loading->name
            ));
        }
    }
    const Result<messages::UpdateReply> reply = co_await load_from(exchange, *loading);
    if (!reply) co_return vllm_load_failure(reply.error());
    co_return Response::text(
        200, fmt::format("Success: LoRA adapter '{}' added successfully.", loading->name)
    );
}

Task<Response> unload(Exchange& exchange) {
    FieldReader fields(parse_json_object(exchange.request().body));
    const Result<std::string> name = control::read_adapter_name(exchange, fields);
    if (!name) co_return vllm_failure(name.error());
    const Result<messages::AdapterReply> reply = co_await control::unload_adapter(exchange, *name);
    if (!reply) co_return vllm_failure(reply.error());
    co_return Response::text(
        200, fmt::format("Success: LoRA adapter '{}' removed successfully.", *name)
    );
}

// Serves SkyRL's own route, which replaces a loaded adapter of that name.
Task<Response> load_for_skyrl(Exchange& exchange) {
    const Result<Loading> loading = read_loading(exchange);
    if (!loading) co_return vllm_failure(loading.error());
    const Result<messages::UpdateReply> reply = co_await load_from(exchange, *loading);
    if (!reply) co_return vllm_load_failure(reply.error());
    co_return Response::json(
        200, {{"status", "ok"}, {"lora_name", loading->name}, {"lora_int_id", raw(reply->epoch)}}
    );
}

}  // namespace

void add_vllm_adapters(Router& router) {
    router.add(
        Dialect::kVllm,
        Access::kAdmin,
        {{.methods = "POST", .path = "/v1/load_lora_adapter", .handler = load, .media = kTextMedia},
         {.methods = "POST",
          .path = "/v1/unload_lora_adapter",
          .handler = unload,
          .media = kTextMedia},
         {"POST", "/skyrl/v1/load_lora_adapter", load_for_skyrl}}
    );
}

}  // namespace pitstop::http
