// Says machine_limits.h in the units of a step, for programs that speak to a tree and know no
// kernel.
#pragma once

#include <cstdint>

namespace pitstop::bench {

struct StepLimits {
    int threads = 0;
    double read_bytes_per_s = 0;
    double copy_bytes_per_s = 0;  // of memcpy, counting each byte once, though read and written
    double flops_per_s = 0;       // bf16 products summed in fp32
};

// Measures on all cores, with arrays of `bytes`: memory's limits where that is far more than the
// caches hold, else the caches'.
[[nodiscard]] StepLimits measure_step_limits(std::int64_t bytes);

}  // namespace pitstop::bench
