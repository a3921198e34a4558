// The control routes of both dialects, file by file.
#pragma once

#include "http_proc/router.h"

#include <nlohmann/json_fwd.hpp>

namespace pitstop {

void add_pitstop_shutdown(Router& router);
void add_server_info(Router& router);
void add_sglang_control(Router& router);
void add_sglang_drain(Router& router);
void add_sglang_memory(Router& router);
void add_sglang_weights(Router& router);
void add_vllm_pause(Router& router);
void add_vllm_rpc(Router& router);
void add_vllm_sleep(Router& router);
void add_weight_label(Router& router);
void add_sglang_weight_transfer(Router& router);
void add_vllm_weight_transfer(Router& router);
void add_weights_checker(Router& router);

// collective_rpc's update_weights and update_weights_from_ipc (vllm_weight_transfer.cpp). Null: no
// args.
[[nodiscard]] Task<Response> update_weights_by_rpc(
    Exchange& exchange, const nlohmann::json& kwargs
);
[[nodiscard]] Task<Response> update_from_ipc_by_rpc(Exchange& exchange, const nlohmann::json* args);

// All of them.
void add_control_routes(Router& router);

}  // namespace pitstop
