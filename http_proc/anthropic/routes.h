// Anthropic's routes: one function per file that adds routes.
#pragma once

#include "http_proc/server/router.h"

namespace pitstop::http {

void add_anthropic_messages(Router& router);

}  // namespace pitstop::http
