// Measures the kernels that read a step's logits, and the small kernels of a step.
#pragma once

#include "bench/gpu_meter.h"

namespace pitstop::kernels::bench {

void run_logits(GpuMeter& gpu);
// Measures the small kernels of a step of 64 requests: a few microseconds each,
// whatever their size.
void run_small(GpuMeter& gpu);

}  // namespace pitstop::kernels::bench
