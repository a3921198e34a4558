// Measures the CPU time that processes use, all their threads: what a token costs whoever serves
// it, also where server and client share the machine's cores.
#pragma once

#include "base/result.h"

#include <string>

namespace pitstop::bench {

// Seconds since each process began.
struct CpuTimes {
    double http_s = 0;    // http_proc; 0 without one
    double others_s = 0;  // the tree's other processes, together
    double own_s = 0;     // this process: its clients
};

// Measures the tree in `run_dir`, by its tree.json, and this process. Errors: kNotFound.
[[nodiscard]] Result<CpuTimes> cpu_times_of(const std::string& run_dir);

// Says what each token cost between two measurements, in microseconds.
struct TokenCost {
    double http_us = 0;
    double others_us = 0;
    double own_us = 0;
};
[[nodiscard]] TokenCost cost_of(const CpuTimes& begin, const CpuTimes& end, double num_tokens);

}  // namespace pitstop::bench
