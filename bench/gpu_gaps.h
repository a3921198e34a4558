// Measures what a decode step of one request loses between its kernels: the layers of qwen3-8b and
// qwen3-0.6b, kernel by kernel as the model launches them, by the device's own clock (events),
// beside what the same kernels take alone and what their bytes take at the copy bandwidth.
#pragma once

#include "bench/gpu_meter.h"

#include <nlohmann/json.hpp>

namespace pitstop::kernels::bench {

// Returns [{"step", "launches", "step_us", "alone_us", "least_us", "ops": [{"what", "in_step_us",
// "alone_us"}]}]. REQUIRES: the meter has limits.
nlohmann::json measure_gaps(GpuMeter& gpu);

}  // namespace pitstop::kernels::bench
