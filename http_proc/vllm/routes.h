// vLLM's routes: one function per file that adds routes.
#pragma once

#include "http_proc/server/router.h"

#include <nlohmann/json_fwd.hpp>

namespace pitstop::http {

void add_vllm_adapters(Router& router);
void add_vllm_generate(Router& router);
void add_vllm_pause(Router& router);
void add_vllm_render(Router& router);
void add_vllm_rpc(Router& router);
void add_vllm_sleep(Router& router);
void add_vllm_tokenize(Router& router);
void add_vllm_weight_transfer(Router& router);

// Methods of collective_rpc for weights from a trainer (weight_transfer.cpp). `args` may be null.
[[nodiscard]] Task<Response> start_update_by_rpc(Exchange& exchange, const nlohmann::json& kwargs);
[[nodiscard]] Task<Response> update_weights_by_rpc(
    Exchange& exchange, const nlohmann::json& kwargs
);
[[nodiscard]] Task<Response> finish_update_by_rpc(Exchange& exchange, const nlohmann::json& kwargs);
[[nodiscard]] Task<Response> update_from_ipc_by_rpc(Exchange& exchange, const nlohmann::json* args);
// Answers for a method that returns nothing, with one result per worker of an engine.
[[nodiscard]] Response rpc_done(Exchange& exchange);

}  // namespace pitstop::http
