// Adds the routes that watch a server, one function per file that lists them.
#pragma once

#include "http_proc/server/router.h"

#include <chrono>

namespace pitstop::http {

// Whoever watches a tree is not kept waiting by one that is stuck: no status in time is an answer,
// too.
inline constexpr std::chrono::seconds kStatusTimeout{5};

void add_metrics(Router& router);
void add_pitstop_health(Router& router);
void add_status_page(Router& router);

}  // namespace pitstop::http
