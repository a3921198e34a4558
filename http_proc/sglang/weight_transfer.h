// Handles groups, broadcasts and directories, for the routes of SGLang and AReaL.
//
// Thread: the server's loop.
#pragma once

#include "http_proc/server/exchange.h"
#include "http_proc/server/task.h"

#include <nlohmann/json_fwd.hpp>

namespace pitstop::http {

// REQUIRES: `body` outlives the task.
[[nodiscard]] Task<Response> init_group_of(Exchange& exchange, const nlohmann::json& body);
[[nodiscard]] Task<Response> update_from_group(Exchange& exchange, const nlohmann::json& body);
// Updates from the directory `model_path`.
[[nodiscard]] Task<Response> update_from_dir(Exchange& exchange, const nlohmann::json& body);

}  // namespace pitstop::http
