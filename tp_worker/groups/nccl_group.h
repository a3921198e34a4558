// Joins a PyTorch trainer's NCCL group: the rendezvous, and then NCCL's broadcasts, straight into
// the GPU's memory.
//
//   sglang  count in at the trainer's TCPStore when asked to join; the unique id is there only with
//           the trainer's first broadcast, so it is read with the first receive (waiting earlier
//           would wait for a trainer that waits for us)
//   vllm    count in, then read the id, pickled, and join at once; or the id came with the call.
//           Every rank of vLLM's adds up one float then
//   direct  the id came with the call: join at once
//
// The communicator and its stream are the group's own; steps wait for neither. What is in flight is
// polled, and aborted when its deadline passes, the update is dropped, NCCL reports a peer's end or
// the trainer's store has gone: the group is of no use then, nothing else is lost. A CPU worker
// goes as far as the rendezvous and then says kUnsupported.
//
// Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, broadcastUniqueNCCLID; vLLM,
//         StatelessProcessGroup, PyNcclCommunicator.
#pragma once

#include "tp_worker/groups/groups.h"
#include "tp_worker/groups/nccl_turn.h"

#include <cstdint>
#include <memory>

namespace pitstop::tp_worker {

// Bounds the broadcasts that a GPU takes: each lands whole, beside the weights and KV.
inline constexpr std::int64_t kLandingBytesMax = std::int64_t{4} << 30;

// `turn` outlives the group. Errors: tcp_stream.h's, NcclCommunicator's (kernels/nccl.h),
// kInvalidArgument (a rank that the group does not have), kMalformed (an id that is none),
// kDeadlineExceeded (not everybody came), kUnsupported.
Result<std::shared_ptr<BroadcastGroup>> join_nccl_group(
    const messages::GroupSpec& spec, std::int64_t rank, NcclTurn& turn, const Patience& patience
);

}  // namespace pitstop::tp_worker
