#include "http_proc/routes.h"

#include "http_proc/anthropic/routes.h"
#include "http_proc/control/routes.h"
#include "http_proc/observe/openapi.h"
#include "http_proc/observe/routes.h"
#include "http_proc/openai/routes.h"
#include "http_proc/server/errors.h"
#include "http_proc/sglang/routes.h"
#include "http_proc/vllm/routes.h"

#include <cstdint>
#include <future>
#include <string>

namespace pitstop::http {
namespace {

Task<Response> openapi(Exchange& exchange) {
    ServerContext& server = exchange.server();
    const std::uint64_t tree = exchange.tree().number();
    make_once(
        server.openapi.of(tree),
        [options = server.options(), version = exchange.tree().hello().server] {
            return openapi_document(all_routes(), options, version);
        }
    );
    const std::shared_future<Result<std::string>> document = server.openapi.of(tree);
    while (!is_made(document) && !exchange.is_gone()) co_await server.ticker.next();
    if (exchange.is_gone()) co_return Response::empty(503);
    const Result<std::string>& made = document.get();
    if (!made) co_return error_response(Dialect::kPitstop, made.error());
    co_return Response::json_text(200, *made);
}

}  // namespace

Router all_routes() {
    Router router;
    add_pitstop_health(router);
    add_sglang_generate(router);
    add_sglang_abort(router);
    add_sglang_info(router);
    add_openai_models(router);
    add_openai_completions(router);
    add_vllm_generate(router);
    add_openai_chat(router);
    add_openai_responses(router);
    add_anthropic_messages(router);
    add_vllm_tokenize(router);
    add_vllm_render(router);
    add_metrics(router);
    add_status_page(router);
    router.add(Dialect::kPitstop, Access::kData, {{"GET", "/openapi.json", openapi}});
    add_sglang_control(router);
    add_sglang_weights(router);
    add_sglang_memory(router);
    add_sglang_drain(router);
    add_sglang_sessions(router);
    add_weights_checker(router);
    add_weight_label(router);
    add_sglang_weight_transfer(router);
    add_vllm_weight_transfer(router);
    add_sglang_adapters(router);
    add_vllm_adapters(router);
    add_pitstop_drop_update(router);
    add_trainers(router);
    add_server_info(router);
    add_vllm_pause(router);
    add_vllm_sleep(router);
    add_vllm_rpc(router);
    add_pitstop_shutdown(router);
    return router;
}

}  // namespace pitstop::http
