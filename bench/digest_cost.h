// Measures what digesting adds to staging a checkpoint: times a stage's copy out of the page cache,
// with and without digesting.
#pragma once

#include "base/result.h"

#include <string>

namespace pitstop::bench {

struct DigestCost {
    double copy_s = 0;      // all tensors, with stores that bypass the caches
    double digested_s = 0;  // copying and digesting all tensors
};

// Measures on `num_threads` threads. Alternates copies with and without digesting, and returns the
// best run of each.
// REQUIRES: the checkpoint is in the page cache. Errors: those of opening it; kUnsupported, it
// cannot be mapped.
Result<DigestCost> measure_digest_cost(const std::string& checkpoint, int num_threads);

}  // namespace pitstop::bench
