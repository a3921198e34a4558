// OpenAI's routes: one function per file that adds routes.
#pragma once

#include "http_proc/server/router.h"

namespace pitstop::http {

void add_openai_chat(Router& router);
void add_openai_completions(Router& router);
void add_openai_models(Router& router);
void add_openai_responses(Router& router);

}  // namespace pitstop::http
