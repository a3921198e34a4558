// Adds the routes that watch a server, one function per file that lists them.
#pragma once

#include "http_proc/server/router.h"

namespace pitstop::http {

void add_metrics(Router& router);
void add_pitstop_health(Router& router);
void add_status_page(Router& router);

}  // namespace pitstop::http
