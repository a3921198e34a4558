// A member of a PyTorch trainer's NCCL group: the rendezvous, and then NCCL's broadcast.
//
//   sglang  count in at the trainer's TCPStore when asked to join; the unique id is there only with
//           the trainer's first broadcast, so it is read with the first receive (waiting earlier
//           would wait for a trainer that waits for us)
//   vllm    count in, then read the id, pickled, at once
//   direct  the id came with the call
//
// The communicator itself needs a GPU: where there is none, joining works as far as the rendezvous
// goes and then says kUnsupported.
#pragma once

#include "tp_worker/groups/groups.h"

#include <cstdint>
#include <memory>

namespace pitstop::tp_worker {

// Errors: tcp_stream.h's, kMalformed (an id that is none), kUnsupported.
Result<std::shared_ptr<BroadcastGroup>> join_nccl_group(
    const messages::GroupSpec& spec, std::int64_t rank, const Patience& patience
);

}  // namespace pitstop::tp_worker
