// A Communicator for ranks that have a GPU each, on one machine. Sums, columns and records are
// kernels on the step's stream, over memory that every rank has opened of every other
// (kernels/exchange.h). Bytes in the host's memory use the host's communicator. Large sums use NCCL
// (rank_nccl.h), if all ranks have it. When the ranks connect, they measure the size from which
// NCCL is faster (sum_choice.h).
//
// Owns:    this rank's exchange memory, and the opened memory of its peers. A peer may read this
//          rank's memory until all ranks have waited for their streams and met on the host; so it
//          lives as long as the engine.
// Waits:   for its peers, when it is made, and around a step's sums over NCCL; otherwise never for
//          tensors. A kernel that waits for a peer ends at `limit`, and check() names the rank.
// Bounded: exchange_bytes(kExchangeChunkBytes) of the GPU's memory.
#pragma once

#include "base/time.h"
#include "kernels/tensor.h"
#include "tp_worker/groups/nccl_turn.h"
#include "tp_worker/ranks/communicator.h"
#include "tp_worker/ranks/sum_choice.h"

#include <cstdint>
#include <memory>

namespace pitstop::tp_worker {

struct GpuCommunicatorArgs {
    Communicator& host;  // has the same ranks; outlives this one
    // has the same ranks, and outlives this one; carries the id of NCCL's communicator
    Communicator& bus;
    kernels::Stream stream{};
    Duration limit{};  // of a kernel's wait for a peer, and of a step's sums over NCCL
    SumPath sums = SumPath::kOwn;
    std::shared_ptr<NcclTurn> nccl_turn{};  // of the process; not used with kOwn
    std::int64_t sum_bytes_max = 0;         // per step
    bool is_timed = false;  // kAuto measures the size; otherwise a known size is used
};

// Returns when all ranks have opened each other's memory. REQUIRES: the GPU is open. Errors:
// kUnsupported (more ranks than an exchange has; no peer access; other GPUs on other ranks; kNccl
// without NCCL between the ranks), kUnavailable (a handle cannot be opened), kResourceExhausted;
// and the host communicator's.
Result<std::unique_ptr<Communicator>> connect_gpu_communicator(const GpuCommunicatorArgs& args);

}  // namespace pitstop::tp_worker
