// Measures what digesting adds to staging a checkpoint: the copy out of its page cache that a stage
// makes, alone and with the digest on the way.
#pragma once

#include "base/result.h"

#include <string>

namespace pitstop::bench {

struct DigestCost {
    double copy_s = 0;      // all tensors, with stores past the cache
    double digested_s = 0;  // the same, digested
};

// Measures on `num_threads` threads and keeps the best of some runs of each kind, taken in turns.
// REQUIRES: the checkpoint is in the page cache. Errors: those of opening it; kUnsupported, it
// cannot be mapped.
Result<DigestCost> measure_digest_cost(const std::string& checkpoint, int num_threads);

}  // namespace pitstop::bench
