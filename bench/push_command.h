// Runs `launch/pitstop push` as a process of its own, as a trainer's machine does.
#pragma once

#include "base/result.h"
#include "bench/stall_report.h"

#include <string>
#include <vector>

namespace pitstop::bench {

struct PushCommand {
    std::string launcher{};  // launch/pitstop
    std::string run_dir{};
    std::string checkpoint{};
    std::vector<std::string> flags{};
};

// Runs the command to its end. Errors: the program cannot be run, or reports failure.
Result<UpdateWaterfall> run_push(const PushCommand& command);

}  // namespace pitstop::bench
