// Makes a Communicator over memory shared by the ranks' processes, on one machine.
//
// Rank 0 makes the memory (a memfd: it has no name, so nothing is left behind however the
// processes end) and describes it in a small file at `path`; the others open it through /proc and
// attach. The file is removed once all ranks have attached. Each operation is cut into chunks, and
// a chunk is one barrier: every rank writes its chunk into its own buffer, arrives, and reads the
// others'. Buffers come in pairs used in turn: a rank that arrives for chunk n + 1 has finished
// reading chunk n.
//
// Waits:   spins for a moment if every rank can have a core, then parks on a futex; a peer that
//          dies is noticed within kLivenessMs, one that is stopped at the deadline.
// Bounded: 2 * size * kShmChunkBytes of shared memory.
#pragma once

#include "base/time.h"
#include "tp_worker/ranks/communicator.h"

#include <cstdint>
#include <memory>
#include <string>

namespace pitstop::tp_worker {

inline constexpr std::int64_t kShmChunkBytes = std::int64_t{1} << 20;
inline constexpr int kLivenessMs = 10;

struct ShmCommunicatorArgs {
    std::string path{};  // of the rendezvous file: unique to the replica, in the run directory
    Rank rank{};
    int size = 1;
    Duration attach_timeout{};  // for all ranks to attach
    Duration peer_timeout{};    // for a peer to arrive at an operation
};

// Returns when all ranks have attached. Errors: as Communicator's, and kResourceExhausted.
Result<std::unique_ptr<Communicator>> attach_shm_communicator(const ShmCommunicatorArgs& args);

}  // namespace pitstop::tp_worker
