// Describes the machine of a measurement and the resources that the measured processes used.
#pragma once

#include "base/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace pitstop::bench {

struct Machine {
    std::string cpu{};  // its name, and the widest vector instructions that matter here
    int cores = 0;      // cores that this process may use
    std::int64_t memory_bytes = 0;
    std::string kernel{};
};
[[nodiscard]] Machine this_machine();

// Returns the directory with launch/: the bundle of this program, or the sources that it
// was built from.
[[nodiscard]] std::string root_dir();

// Returns the commit of the sources, or the one that a bundle was made from: "1a2b3c4d5e6f", with
// "-dirty" if tracked files differ from it. Returns "unknown" outside a clone and a bundle.
[[nodiscard]] std::string source_commit();
[[nodiscard]] std::string utc_now();  // "2025-11-21T07:30:00Z"

// Returns the command as one would type it in a clone: the program without its directory,
// then its words.
[[nodiscard]] std::vector<std::string> command_of(int argc, char** argv);

struct ProcessUse {
    std::string name{};  // "tp_worker[0.1]"
    pid_t pid = 0;
    double cpu_s = 0;                 // user and system, since it started
    std::int64_t peak_bytes = 0;      // resident, at most (VmHWM)
    std::int64_t resident_bytes = 0;  // now
};

// Measures the launcher and the processes of the tree that runs in `run_dir`, as its tree.json
// names them. Leaves out processes that have ended meanwhile.
[[nodiscard]] Result<std::vector<ProcessUse>> processes_of(const std::string& run_dir);

// Returns the CPU seconds of all threads of a process so far; nothing if the process is gone. PID 0
// is this process.
[[nodiscard]] std::optional<double> cpu_seconds(pid_t pid);

}  // namespace pitstop::bench
