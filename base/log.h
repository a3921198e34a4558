// Logs through spdlog to standard error, one line per event, preceded by `process`. Messages may
// quote text from a wire: control characters and non-ASCII bytes are written as \xNN, so that no
// sender can write lines of its own into the log, or control a terminal.
//
// Thread: any.
#pragma once

#include "base/result.h"

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

namespace pitstop {

// Call once, first thing in main. `process` is this process's name, such as "tp_worker[0.1]".
// `level` is one of trace, debug, info, warning, error, off.
Result<> init_logging(std::string_view process, std::string_view level);

// Returns the text as the log shows it.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace pitstop
