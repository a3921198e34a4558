// Serves routes that trainers' own patched servers add to SGLang's and vLLM's. Bodies and answers
// have SGLang's shape, also for AReaL's plug-in of vLLM.
//
//   AReaL   /areal_*: a pause, a group, and updates; a broadcast takes two calls: first the names
//           of the tensors, then the start
//   slime   /post_process_weights, /pull_weights: as in slime's version of SGLang
#include "http_proc/control/control.h"
#include "http_proc/format/control_fields.h"
#include "http_proc/format/json_body.h"
#include "http_proc/sglang/answers.h"
#include "http_proc/sglang/routes.h"
#include "http_proc/sglang/weight_transfer.h"

#include <nlohmann/json.hpp>

#include <string_view>
#include <utility>

namespace pitstop::http {
namespace {

Response success(std::string_view message) {
    return Response::json(200, {{"success", true}, {"message", message}});
}

// Pauses as AReaL's plug-in does: all open requests end with their output so far, and the cache is
// cleared.
Task<Response> areal_pause(Exchange& exchange) {
    const Result<messages::PauseReply> reply =
        co_await control::pause(exchange, messages::PauseMode::kAbort);
    if (!reply) co_return sglang_failure(reply.error());
    co_return success("Generation paused");
}

Task<Response> areal_continue(Exchange& exchange) {
    const Result<messages::ContinueReply> reply = co_await control::go_on(exchange);
    if (!reply) co_return sglang_failure(reply.error());
    nlohmann::ordered_json answer{{"success", true}, {"message", "Generation continued"}};
    control::add_update(answer, reply->update);
    co_return Response::json(200, answer);
}

Task<Response> areal_init_group(Exchange& exchange) {
    const Result<nlohmann::json> body = control_fields(exchange.request());
    if (!body) co_return sglang_failure(body.error());
    co_return co_await init_group_of(exchange, *body);
}

Task<Response> areal_update(Exchange& exchange) {
    const Result<nlohmann::json> body = control_fields(exchange.request());
    if (!body) co_return sglang_failure(body.error());
    co_return co_await update_from_dir(exchange, *body);
}

// Keeps the tensors' names for /areal_update_weights_xccl, which has no body.
Task<Response> areal_set_meta(Exchange& exchange) {
    const Result<nlohmann::json> body = parse_json_object(exchange.request().body);
    if (!body) co_return sglang_failure(body.error());
    FieldReader fields(*body);
    for (const std::string_view name : {"names", "dtypes", "shapes"}) {
        const nlohmann::json* list = fields.find(name);
        if (list == nullptr || !list->is_array()) fields.fail(name, "a list");
    }
    if (fields.error()) co_return sglang_failure(*fields.error());
    exchange.server().next_broadcast.of(exchange.tree().number()) = body->dump();
    co_return success("Succeeded to set the tensors of the next update");
}

Task<Response> areal_update_from_group(Exchange& exchange) {
    const std::string announced =
        std::exchange(exchange.server().next_broadcast.of(exchange.tree().number()), {});
    if (announced.empty()) {
        co_return sglang_failure(
            {ErrorCode::kFailedPrecondition,
             "no tensors were announced; call /areal_set_update_weight_meta first"}
        );
    }
    const Result<nlohmann::json> body = parse_json_object(announced);
    if (!body) co_return sglang_failure(body.error());
    co_return co_await update_from_group(exchange, *body);
}

// slime's server undoes and redoes a quantization around an update. Here there is nothing to do:
// weights are served as they arrive.
Task<Response> post_process_weights(Exchange&) {
    co_return success("there is nothing to process: weights are served as they arrived");
}

Task<Response> pull_weights(Exchange&) {
    co_return sglang_failure(
        {ErrorCode::kUnsupported,
         "pull_weights is not supported: weights are pushed, or read by "
         "/update_weights_from_disk"}
    );
}

}  // namespace

void add_trainers(Router& router) {
    router.add(
        Dialect::kSglang,
        Access::kAdmin,
        {
            {"POST", "/areal_pause_generation", areal_pause},
            {"POST", "/areal_continue_generation", areal_continue},
            {"POST", "/areal_init_weights_update_group", areal_init_group},
            {"POST", "/areal_update_weights", areal_update},
            {"POST", "/areal_set_update_weight_meta", areal_set_meta},
            {"POST", "/post_process_weights", post_process_weights},
            {"POST", "/pull_weights", pull_weights},
        }
    );
    router.add_weights(
        Dialect::kSglang, {{"POST", "/areal_update_weights_xccl", areal_update_from_group}}
    );
}

}  // namespace pitstop::http
