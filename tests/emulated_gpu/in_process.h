// Runs a part of a test in a process of its own, made by exec: a GPU's context does not survive a
// fork, and the environment orders faults.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace pitstop::emulator {

// Defines the work of the program when it is started as `name`. Returns 0, or the failed line.
using Part = std::function<int()>;
bool define_part(const std::string& name, Part part);

// Starts a part. wait_part() needs the result.
[[nodiscard]] int start_part(
    const std::string& name, const std::map<std::string, std::string>& environment
);
[[nodiscard]] int wait_part(int process);

// Starts a part and waits. Returns its exit status, or 128 + the signal that ended it.
[[nodiscard]] int run_part(
    const std::string& name, const std::map<std::string, std::string>& environment
);

}  // namespace pitstop::emulator
