// Logs through spdlog to standard error, one line per event, `process` in front. Messages may quote
// what came over a wire: control characters and bytes that are no ASCII stand as \xNN, so that no
// sender writes lines of its own into the log, or to a terminal.
//
// Thread: any.
#pragma once

#include "base/result.h"

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

namespace pitstop {

// Call once, first thing in main. `process` is how this process names itself: "tp_worker[0.1]".
// `level` is one of trace, debug, info, warning, error, off.
Result<> init_logging(std::string_view process, std::string_view level);

// Returns the text as the log shows it.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace pitstop
