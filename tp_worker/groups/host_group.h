// Receives broadcasts over TCP in pitstop's own protocol, for machines without NCCL. The trainer
// listens; the client library has its side (client/host_broadcast.h). Integers are little-endian.
//
//   worker   "PITSTOPB" u32 version (1), rank, world size; u32 length, the group's name
//   trainer  u32 0 when all have joined; or u32 length and why it refuses
//   trainer  per broadcast: "BCST" u64 number (from 0), u64 bytes; the bytes
//   worker   only when it gives up: u32 length and why; then it hangs up
#pragma once

#include "tp_worker/groups/groups.h"

#include <cstdint>
#include <memory>

namespace pitstop::tp_worker {

// Waits until every rank of the group has joined. Errors: tcp_stream.h's; kUnavailable (nobody
// listens for 5 s), kFailedPrecondition (the trainer refuses), kMalformed.
Result<std::shared_ptr<BroadcastGroup>> join_host_group(
    const messages::GroupSpec& spec, std::int64_t rank, const Patience& patience
);

}  // namespace pitstop::tp_worker
