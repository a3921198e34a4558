// Lists the families of CUDA kernels that pitstop_gpu_bench measures, at serving sizes of qwen3-8b.
#pragma once

#include "bench/gpu_meter.h"

#include <span>

namespace pitstop::kernels::bench {

struct GpuFamily {
    const char* name;
    void (*run)(GpuMeter& gpu);
};
std::span<const GpuFamily> gpu_families();

}  // namespace pitstop::kernels::bench
