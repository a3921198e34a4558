#include "http_proc/control_routes.h"

namespace pitstop {

void add_control_routes(Router& router) {
    add_sglang_control(router);
    add_sglang_weights(router);
    add_sglang_memory(router);
    add_sglang_drain(router);
    add_weights_checker(router);
    add_weight_label(router);
    add_sglang_weight_transfer(router);
    add_vllm_weight_transfer(router);
    add_server_info(router);
    add_vllm_pause(router);
    add_vllm_sleep(router);
    add_vllm_rpc(router);
    add_pitstop_shutdown(router);
}

}  // namespace pitstop
