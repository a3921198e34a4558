// Measures the limits of this machine, to which all figures are compared. Each limit is the best
// of `kRepeats` runs.
#pragma once

#include "base/isa.h"
#include "kernels/runtime/thread_pool.h"

namespace pitstop {

struct MachineLimits {
    int num_threads = 0;
    double read_gb_s = 0.0;    // sum of an array far larger than the last cache
    double copy_gb_s = 0.0;    // bytes read plus bytes written, with stores that bypass the caches
    double fma_gflop_s = 0.0;  // fp32 multiply-add, two flops each, at the level
    double bf16_gflop_s =
        0.0;  // products of bf16 pairs, four flops a lane; through fp32 below avx512bf16
};

// REQUIRES: level <= best_isa(). Uses 2 * array_bytes of memory while it runs.
[[nodiscard]] MachineLimits measure_limits(
    kernels::ThreadPool& pool, IsaLevel level, std::int64_t array_bytes
);

}  // namespace pitstop
