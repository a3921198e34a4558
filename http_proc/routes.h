// Adds every route of every room.
#pragma once

#include "http_proc/server/router.h"

namespace pitstop::http {

[[nodiscard]] Router all_routes();

}  // namespace pitstop::http
