// Anthropic's routes, by the function of each file that lists them.
#pragma once

#include "http_proc/server/router.h"

namespace pitstop::http {

void add_anthropic_messages(Router& router);

}  // namespace pitstop::http
