// Measures where the time of a decode step goes, for layers of qwen3-8b and qwen3-0.6b as the model
// launches them, for 1 to 256 requests with contexts of 1k tokens.
#pragma once

#include "bench/gpu_meter.h"

#include <nlohmann/json.hpp>

namespace pitstop::kernels::bench {

// Returns [{"step", "launches", "step_us", "graph_us", "early_us", "alone_us", "least_us", "ops"}]:
// microseconds of a step as a stream's launches, as a graph, as a graph whose kernels start early
// (kernels/device/dependent_launch.cuh), of its kernels alone, and of their bytes at the copy
// bandwidth. An op: {"what", "least_us", "in_step_us": from event to event, "in_graph_us": what the
// graph takes less without it, "alone_us"}. REQUIRES: the meter has limits.
nlohmann::json measure_gaps(GpuMeter& gpu);

}  // namespace pitstop::kernels::bench
