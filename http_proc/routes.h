// Every file that has routes, by the function that lists them.
#pragma once

#include "http_proc/router.h"

namespace pitstop {

void add_openai_chat(Router& router);
void add_vllm_tokenize(Router& router);
void add_metrics(Router& router);
void add_status_page(Router& router);
void add_openai_models(Router& router);
void add_openai_completions(Router& router);
void add_pitstop_health(Router& router);
void add_sglang_abort(Router& router);
void add_sglang_generate(Router& router);
void add_sglang_info(Router& router);
void add_vllm_generate(Router& router);

[[nodiscard]] Router all_routes();

}  // namespace pitstop
