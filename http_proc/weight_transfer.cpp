// Weights that come from a running trainer: SGLang's five routes and vLLM's four. The one place
// that says what there is of them.
#include "http_proc/control_routes.h"
#include "http_proc/errors.h"
#include "http_proc/sglang_answers.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace pitstop {
namespace {

constexpr std::string_view kInstead =
    "is not there yet: this server takes new weights from a checkpoint directory "
    "(/update_weights_from_disk, or /collective_rpc with reload_weights)";

Task<Response> not_yet_sglang(Exchange& exchange) {
    Response answer = error_response(
        Dialect::kSglang, 501, fmt::format("{} {}", exchange.request().path, kInstead)
    );
    nlohmann::ordered_json body = nlohmann::ordered_json::parse(answer.body);
    body["success"] = false;
    co_return Response::json(501, body);
}

Task<Response> not_yet_vllm(Exchange& exchange) {
    co_return error_response(
        Dialect::kVllm, 501, fmt::format("{} {}", exchange.request().path, kInstead)
    );
}

}  // namespace

Task<Response> update_weights_by_rpc(Exchange& exchange) {
    co_return co_await not_yet_vllm(exchange);
}

void add_weight_transfer(Router& router) {
    for (const std::string_view path :
         {"/init_weights_update_group",
          "/destroy_weights_update_group",
          "/update_weights_from_distributed",
          "/update_weights_from_tensor",
          "/update_weights_from_ipc"}) {
        router.add(
            {.methods = "POST",
             .path = path,
             .dialect = Dialect::kSglang,
             .access = Access::kAdmin,
             .handler = not_yet_sglang}
        );
    }
    for (const std::string_view path :
         {"/init_weight_transfer_engine",
          "/start_weight_update",
          "/update_weights",
          "/finish_weight_update"}) {
        router.add(
            {.methods = "POST",
             .path = path,
             .dialect = Dialect::kVllm,
             .access = Access::kAdmin,
             .handler = not_yet_vllm}
        );
    }
}

}  // namespace pitstop
