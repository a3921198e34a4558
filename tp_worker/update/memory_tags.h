// Releases a rank's memory by tags to the operating system, and takes it again at the same
// addresses (design section 6; P8).
#pragma once

#include "messages/memory.h"
#include "tp_worker/model/engine.h"

namespace pitstop::tp_worker {

// Carries the order out; a tag that is in that state already stays as it is. Every tag is measured
// afterwards. On an error some tags may be done: the scheduler orders the way back.
// Thread: no pass runs and nobody reads the weights meanwhile.
messages::WorkerMemoryDone change_memory(Engine& engine, const messages::WorkerMemory& order);

// Measures every tag of this rank, as the answer to no order (call 0). Says nothing of states,
// which follow from orders.
// Thread: the one that carries orders out. Passes may run.
messages::WorkerMemoryDone measure_memory(const Engine& engine);

}  // namespace pitstop::tp_worker
