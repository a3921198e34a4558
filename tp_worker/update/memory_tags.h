// Releases a rank's memory by tags to the operating system, and takes it again at the same
// addresses (design section 6; P8).
#pragma once

#include "messages/memory.h"
#include "tp_worker/model/engine.h"

namespace pitstop::tp_worker {

// Carries out the order; tags already in the requested state stay unchanged. Then measures every
// tag. After an error some tags may have changed; the scheduler orders them back.
// REQUIRES: no pass runs, and no thread reads the weights meanwhile.
messages::WorkerMemoryDone change_memory(Engine& engine, const messages::WorkerMemory& order);

// Measures every tag of this rank, as an answer to no order (call 0). The answer has no states,
// because these follow from orders.
// Thread: the one that runs orders. Passes may run.
messages::WorkerMemoryDone measure_memory(const Engine& engine);

}  // namespace pitstop::tp_worker
