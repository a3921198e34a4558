// Chooses by timing how a GPU multiplies, for every product of a model and every number of rows
// that a step may have (kernels/linear_tuning.h).
#pragma once

#include "tp_worker/blocks/stack.h"

namespace pitstop::tp_worker {

// Overwrites the blocks' buffers. Returns how many products were timed; 0 if there is no choice.
// REQUIRES: the stack has its buffers; nothing else runs.
int tune_products(const Stack& stack, const BoundWeights& weights);

}  // namespace pitstop::tp_worker
