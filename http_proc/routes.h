// Every file that has routes, by the function that lists them.
#pragma once

#include "http_proc/router.h"

namespace pitstop {

void add_openai_models(Router& router);
void add_pitstop_health(Router& router);
void add_sglang_abort(Router& router);
void add_sglang_generate(Router& router);
void add_sglang_info(Router& router);

[[nodiscard]] Router all_routes();

}  // namespace pitstop
