// Runs a part of a test in a process of its own, made by exec: a GPU's context does not survive a
// fork, and faults are ordered by the environment.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace pitstop::emulator {

// Defines what the program does when it is started as `name`. Returns 0, or what failed.
using Part = std::function<int()>;
bool define_part(const std::string& name, Part part);

// Starts one; wait_part() takes what this gave.
[[nodiscard]] int start_part(
    const std::string& name, const std::map<std::string, std::string>& environment
);
[[nodiscard]] int wait_part(int process);

// Both. Its exit status: of the part, or 128 + the signal that ended it.
[[nodiscard]] int run_part(
    const std::string& name, const std::map<std::string, std::string>& environment
);

}  // namespace pitstop::emulator
