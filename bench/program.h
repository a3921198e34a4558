// The main function of a benchmark: the same flags, --help, errors and exit codes for all.
#pragma once

#include "base/flags.h"
#include "base/result.h"
#include "base/time.h"
#include "bench/machine.h"

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::bench {

template <class Options>
struct Program {
    std::string_view name{};
    std::string about{};
    void (*add_flags)(FlagSet& flags, Options& options) = nullptr;
    // Checks the options before anything runs.
    Result<> (*check)(const FlagSet& flags, Options& options) = nullptr;
    // `command` is the command as one would type it. Returns the exit code.
    Result<int> (*run)(const Options& options, const std::vector<std::string>& command) = nullptr;
};

// Returns the exit code: the run's, 1 if the run failed, 2 for wrong flags.
template <class Options>
[[nodiscard]] int run_program(const Program<Options>& program, int argc, char** argv) {
    Options options;
    FlagSet flags(program.name, program.about);
    program.add_flags(flags, options);
    if (const auto code = flags.read(argc, argv)) return *code;
    if (const auto checked = program.check(flags, options); !checked)
        return flags.fail(checked.error());
    const Result<int> code = program.run(options, command_of(argc, argv));
    if (code) return *code;
    fmt::print(stderr, "{}: {}\n", program.name, code.error().message);
    return 1;
}

[[nodiscard]] inline double seconds_since(TimePoint begin) { return seconds(Clock::now() - begin); }

}  // namespace pitstop::bench
