// Logging: spdlog to standard error, one line per event, `process` in front.
//
// Thread: any.
#pragma once

#include "base/result.h"

#include <spdlog/spdlog.h>

#include <string_view>

namespace pitstop {

// Call once, first thing in main. `process` is how this process names itself: "tp_worker[0.1]".
// Level: trace, debug, info, warning, error, off.
Result<> init_logging(std::string_view process, std::string_view level);

}  // namespace pitstop
