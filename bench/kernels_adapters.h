#pragma once

#include "bench/kernels_meter.h"

namespace pitstop::bench {

// Times low_rank (kernels/low_rank.h) for 1 and 32 rows with one adapter, and 32 rows with eight.
void bench_adapters(Bench& bench);

}  // namespace pitstop::bench
