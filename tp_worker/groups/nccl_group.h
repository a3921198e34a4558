// Joins a PyTorch trainer's NCCL group: the rendezvous, and then NCCL's broadcasts, directly into
// the GPU's memory.
//
//   sglang  counts in at the trainer's TCPStore when asked to join; the unique id exists only with
//           the trainer's first broadcast, so it is read with the first receive (waiting earlier
//           would wait for a trainer that waits for us)
//   vllm    counts in, then reads the id, pickled, and joins at once; or the id came with the call.
//           Then every rank of vLLM sums one float
//   direct  the id came with the call: joins at once
//
// The communicator and its stream are the group's own; steps wait for neither. Work in flight is
// polled, and aborted when its deadline passes, the update is dropped, NCCL reports a peer's end or
// the trainer's store has gone. The group is unusable then; nothing else is lost. A CPU worker
// performs the rendezvous and then returns kUnsupported.
//
// Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, broadcastUniqueNCCLID; vLLM,
//         StatelessProcessGroup, PyNcclCommunicator.
#pragma once

#include "tp_worker/groups/groups.h"
#include "tp_worker/groups/nccl_turn.h"

#include <cstdint>
#include <memory>

namespace pitstop::tp_worker {

// The largest broadcast that a GPU accepts: a buffer besides weights and KV holds all of it.
inline constexpr std::int64_t kLandingBytesMax = std::int64_t{4} << 30;

// `turn` outlives the group. Errors: tcp_stream.h's, NcclCommunicator's (kernels/runtime/nccl.h),
// kInvalidArgument (a rank that the group does not have), kMalformed (an invalid id),
// kDeadlineExceeded (not all ranks joined), kUnsupported.
Result<std::shared_ptr<BroadcastGroup>> join_nccl_group(
    const messages::GroupSpec& spec, std::int64_t rank, NcclTurn& turn, const Patience& patience
);

}  // namespace pitstop::tp_worker
