// Measures products of experts, of qwen3-30b-a3b's shape.
#pragma once

#include "bench/gpu_meter.h"

namespace pitstop::kernels::bench {

void run_experts(GpuMeter& gpu);

}  // namespace pitstop::kernels::bench
