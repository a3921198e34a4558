// A Communicator for ranks that have a GPU each, on several machines. Sums, records and columns use
// NCCL (rank_nccl.h), because our kernels cannot read another machine's memory; bytes in the host's
// memory use the bus. NCCL sums in an order of its own: the same bits on every rank, but other bits
// for other sizes, so there is no deterministic mode.
//
// A step takes NCCL's turn for everything that it enqueues. If a trainer's group has the turn, the
// step waits, together with the other ranks, which retry together. So no two communicators are ever
// in flight on one GPU. A group keeps its turn for no longer than kTrainerShare of a step's limit,
// so that a stalled trainer loses its group, and the replica continues.
//
// Owns:    NCCL's communicator, and room for parts of columns. Thread: the steps'.
// Waits:   for NCCL's turn, and for a step's end on the GPU, until `limit`; the errors name ranks.
// Bounded: kColumnBytes of the GPU's memory.
#pragma once

#include "base/time.h"
#include "kernels/tensor.h"
#include "tp_worker/groups/nccl_turn.h"
#include "tp_worker/ranks/communicator.h"

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

// Returns when all ranks have joined and one sum succeeded. REQUIRES: the GPU is open.
// Errors: kUnsupported (no NCCL between the ranks), kResourceExhausted; the host
// communicator's and NCCL's.
Result<std::unique_ptr<Communicator>> connect_nodes_communicator(const NodesCommunicatorArgs& args);

}  // namespace pitstop::tp_worker
