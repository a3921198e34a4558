// Measures where the time of a decode step goes, for layers of qwen3-8b and qwen3-0.6b as the model
// launches them, for 1 to 256 requests with contexts of 1k tokens.
#pragma once

#include "bench/gpu_meter.h"

#include <nlohmann/json.hpp>

namespace pitstop::kernels::bench {

// Returns an object per step, with "step" (its name), "launches" and "ops", and these times:
//
//   step_us    the step as launches on a stream
//   graph_us   the step as a graph
//   early_us   a graph whose kernels start early (kernels/device/dependent_launch.cuh)
//   alone_us   the sum over its kernels, each timed alone
//   least_us   its bytes at the copy bandwidth
//
// Each op has "what", "least_us", "alone_us", "in_step_us" (from event to event) and "in_graph_us"
// (the time that the graph saves without the op). REQUIRES: the meter has limits.
nlohmann::json measure_gaps(GpuMeter& gpu);

}  // namespace pitstop::kernels::bench
