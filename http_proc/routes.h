// Every route of every room.
#pragma once

#include "http_proc/server/router.h"

namespace pitstop {

[[nodiscard]] Router all_routes();

}  // namespace pitstop
