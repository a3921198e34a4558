// Measures the time that a decode step of one request loses between kernels, for the layers of
// qwen3-8b and qwen3-0.6b as the model launches them. Events time each kernel in the step; the
// report also has each kernel's time alone and the time its bytes need at the copy bandwidth.
#pragma once

#include "bench/gpu_meter.h"

#include <nlohmann/json.hpp>

namespace pitstop::kernels::bench {

// Returns [{"step", "launches", "step_us", "alone_us", "least_us", "ops": [{"what", "in_step_us",
// "alone_us"}]}]. REQUIRES: the meter has limits.
nlohmann::json measure_gaps(GpuMeter& gpu);

}  // namespace pitstop::kernels::bench
