// A Communicator for ranks that have a GPU each, on several machines: sums, records and columns all
// go by NCCL (rank_nccl.h), as no kernel of ours reads another machine's memory; what is in the
// host's memory goes by the bus. NCCL sums in an order of its own: the same bits on every rank, and
// other bits for other sizes, so there is no deterministic mode.
//
// A step takes NCCL's turn for all that it enqueues. Where a trainer's group has it, the step
// waits: with the others, who try anew together, so that no two communicators are ever in flight on
// a GPU and no order of theirs can be wrong. So that a trainer that stands still costs its group
// and not the replica, a group keeps its turn for no longer than kTrainerShare of a step's limit.
//
// Owns:    NCCL's communicator, and room for parts of columns. Thread: the steps'.
// Waits:   for NCCL's turn, and for a step's end on the GPU, until `limit`; the errors name ranks.
// Bounded: kColumnBytes of the GPU's memory.
#pragma once

#include "base/time.h"
#include "kernels/tensor.h"
#include "tp_worker/groups/communicator.h"
#include "tp_worker/groups/nccl_turn.h"

#include <cstdint>
#include <memory>

namespace pitstop::tp_worker {

inline constexpr std::int64_t kColumnBytes = std::int64_t{8} << 20;
inline constexpr int kTrainerShare = 2;  // divides the limit

struct NodesCommunicatorArgs {
    Communicator& host;  // of the same ranks, over the bus; outlives this one
    kernels::Stream stream{};
    Duration limit{};
    std::shared_ptr<NcclTurn> nccl_turn{};  // of the process
};

// Returns when all ranks have joined and one sum went through. REQUIRES: the GPU is open.
// Errors: kUnsupported (there is no NCCL between the ranks), kResourceExhausted; the host
// communicator's and NCCL's.
Result<std::unique_ptr<Communicator>> connect_nodes_communicator(const NodesCommunicatorArgs& args);

}  // namespace pitstop::tp_worker
