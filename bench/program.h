// Runs a benchmark's main: flags, --help, errors and exit codes are alike in all of them.
#pragma once

#include "base/flags.h"
#include "base/result.h"
#include "base/time.h"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::bench {

struct Program {
    std::string_view name{};
    std::string about{};
    std::function<void(FlagSet&)> add_flags{};
    std::function<Result<>(const FlagSet&)> check{};  // what was given, before anything runs
    // Takes the command as one would type it. Returns the exit code.
    std::function<Result<int>(const std::vector<std::string>& command)> run{};
};

// Returns the exit code: the run's, 1 where it ended with an error, 2 for flags that are wrong.
[[nodiscard]] int run_program(const Program& program, int argc, char** argv);

[[nodiscard]] inline double seconds_since(TimePoint begin) { return seconds(Clock::now() - begin); }

}  // namespace pitstop::bench
