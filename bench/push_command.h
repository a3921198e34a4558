// Runs `launch/pitstop push`, as a trainer's machine runs it: a process of its own, beside the
// tree.
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

// Runs it to its end. Errors: it could not be run, or says no.
Result<UpdateWaterfall> run_push(const PushCommand& command);

}  // namespace pitstop::bench
