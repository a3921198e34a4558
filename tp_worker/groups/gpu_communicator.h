// This is a Communicator for ranks that have a GPU each, on one machine: sums, columns and records
// are kernels on the step's stream, over memory that every rank has opened of every other
// (kernels/exchange.h); what is in the host's memory goes by the host's communicator. Sums that are
// large enough go by NCCL (rank_nccl.h), where there is one between the ranks; from which size on
// they measure when they are connected (sum_choice.h).
//
// Owns:    this rank's exchange memory, and what it has opened of its peers'. A peer may read it
// until
//          all have waited for their streams and met on the host; so it goes with the engine.
// Waits:   for its peers, when it is made, and around a step's sums over NCCL; else never for
//          tensors. A kernel that waits for a peer ends at `limit`, and check() names the rank.
// Bounded: exchange_bytes(kExchangeChunkBytes) of the GPU's memory.
#pragma once

#include "base/time.h"
#include "kernels/tensor.h"
#include "tp_worker/groups/communicator.h"
#include "tp_worker/groups/nccl_turn.h"
#include "tp_worker/groups/sum_choice.h"

#include <cstdint>
#include <memory>

namespace pitstop::tp_worker {

struct GpuCommunicatorArgs {
    Communicator& host;  // has the same ranks; outlives this one
    Communicator& bus;   // likewise; the id of NCCL's communicator goes by it
    kernels::Stream stream{};
    Duration limit{};  // for a kernel's wait for a peer, and for a step's sums over NCCL
    SumPath sums = SumPath::kOwn;
    std::shared_ptr<NcclTurn> nccl_turn{};  // the process's; not used with kOwn
    std::int64_t sum_bytes_max = 0;         // per step
    bool is_timed = false;                  // kAuto measures; else it goes by what others found
};

// Returns when all ranks have opened one another's memory. REQUIRES: the GPU is open.
// Errors: kUnsupported (more ranks than an exchange has; no peer access; other GPUs on other
// ranks; kNccl, and there is none between the ranks), kUnavailable (a handle opens nothing),
// kResourceExhausted; and the host communicator's.
Result<std::unique_ptr<Communicator>> connect_gpu_communicator(const GpuCommunicatorArgs& args);

}  // namespace pitstop::tp_worker
