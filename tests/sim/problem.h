// The line of a schedule that failed.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace pitstop::sim {

// Writes the line, and flushes it: a run that is killed later has reported its finding.
inline void print_problem(std::FILE* out, std::int64_t seed, const std::string& problem) {
    std::fprintf(out, "seed %lld: %s\n", static_cast<long long>(seed), problem.c_str());
    std::fflush(out);
}

}  // namespace pitstop::sim
