// The routes that observe a server: one function per file that adds routes.
#pragma once

#include "http_proc/server/router.h"

#include <chrono>

namespace pitstop::http {

// A monitor must not wait for a stuck tree: after this time the answer reports no status.
inline constexpr std::chrono::seconds kStatusTimeout{5};

void add_metrics(Router& router);
void add_pitstop_health(Router& router);
void add_status_page(Router& router);

}  // namespace pitstop::http
