// A Communicator for ranks that have a GPU each, on one machine: sums and columns are kernels on
// the step's stream, over memory that every rank has opened of every other (kernels/exchange.h);
// what is in the host's memory goes by the host's communicator.
//
// Owns:    this rank's exchange memory, and what it has opened of its peers'. A peer may read it
// until
//          all have waited for their streams and met on the host; so it goes with the engine.
// Waits:   for its peers, when it is made; then never for tensors. A kernel that waits for a peer
//          ends at `limit`, and check() names the rank.
// Bounded: exchange_bytes(kExchangeChunkBytes) of the GPU's memory.
#pragma once

#include "base/time.h"
#include "kernels/tensor.h"
#include "tp_worker/groups/communicator.h"

#include <memory>

namespace pitstop::tp_worker {

struct GpuCommunicatorArgs {
    Communicator& host;  // of the same ranks; outlives this one
    kernels::Stream stream{};
    Duration limit{};  // of a kernel's wait for a peer
};

// Returns when all ranks have opened one another's memory. REQUIRES: the GPU is open.
// Errors: kUnsupported (more ranks than an exchange has; no peer access; other GPUs on other
// ranks), kUnavailable (a handle opens nothing), kResourceExhausted; and the host communicator's.
Result<std::unique_ptr<Communicator>> connect_gpu_communicator(const GpuCommunicatorArgs& args);

}  // namespace pitstop::tp_worker
