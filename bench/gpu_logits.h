// Measures the kernels that read a step's logits, and those that are small beside them.
#pragma once

#include "bench/gpu_meter.h"

namespace pitstop::kernels::bench {

void run_logits(GpuMeter& gpu);
// Measures what a step of 64 requests does besides: a few microseconds each, whatever they move.
void run_small(GpuMeter& gpu);

}  // namespace pitstop::kernels::bench
