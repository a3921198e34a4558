// The limits of machine_limits.h in the units of a step, for programs that talk to a tree and
// use no kernel.
#pragma once

#include <cstdint>

namespace pitstop::bench {

struct StepLimits {
    int threads = 0;
    double read_bytes_per_s = 0;
    double copy_bytes_per_s = 0;  // of memcpy; a byte that is read and written counts once
    double flops_per_s = 0;       // bf16 products summed in fp32
};

// Measures on all cores with arrays of `bytes`: the limits of memory if the arrays are far larger
// than the caches, else the caches' limits.
[[nodiscard]] StepLimits measure_step_limits(std::int64_t bytes);

}  // namespace pitstop::bench
