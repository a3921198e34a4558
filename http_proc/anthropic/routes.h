// Anthropic's routes: one function for each file that has some.
#pragma once

#include "http_proc/server/router.h"

namespace pitstop::http {

void add_anthropic_messages(Router& router);

}  // namespace pitstop::http
