// pitstop's own control routes.
#pragma once

#include "http_proc/server/router.h"

namespace pitstop::http {

void add_pitstop_drop_update(Router& router);
void add_pitstop_shutdown(Router& router);

}  // namespace pitstop::http
