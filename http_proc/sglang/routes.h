// SGLang's routes: one function per file that adds routes.
#pragma once

#include "http_proc/server/router.h"

namespace pitstop::http {

void add_sglang_abort(Router& router);
void add_sglang_adapters(Router& router);
void add_sglang_control(Router& router);
void add_sglang_drain(Router& router);
void add_sglang_generate(Router& router);
void add_sglang_info(Router& router);
void add_sglang_memory(Router& router);
void add_sglang_weight_transfer(Router& router);
void add_sglang_weights(Router& router);
void add_server_info(Router& router);
void add_sglang_sessions(Router& router);
void add_trainers(Router& router);
void add_weight_label(Router& router);
void add_weights_checker(Router& router);

}  // namespace pitstop::http
