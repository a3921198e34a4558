#include "http_proc/routes.h"

#include "http_proc/control_routes.h"

namespace pitstop {

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
    add_vllm_tokenize(router);
    add_metrics(router);
    add_status_page(router);
    add_control_routes(router);
    return router;
}

}  // namespace pitstop
