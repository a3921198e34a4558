// Times low_rank (kernels/low_rank.h) at serving sizes.
#pragma once

#include "bench/kernels_meter.h"

namespace pitstop::bench {

// Times 1 and 32 rows with one adapter, and 32 rows with eight.
void bench_adapters(Bench& bench);

}  // namespace pitstop::bench
