#include "bench/step_limits.h"

#include "bench/machine.h"
#include "bench/machine_limits.h"

namespace pitstop::bench {

StepLimits measure_step_limits(std::int64_t bytes) {
    kernels::ThreadPool pool(this_machine().cores);
    const MachineLimits limits = measure_limits(pool, best_isa(), bytes);
    return {
        .threads = limits.num_threads,
        .read_bytes_per_s = limits.read_gb_s * 1e9,
        .copy_bytes_per_s = limits.copy_gb_s / 2 * 1e9,
        .flops_per_s = limits.bf16_gflop_s * 1e9,
    };
}

}  // namespace pitstop::bench
