// The ranks of a replica find these out together at the start, each from its own GPU, so that all
// of them decide alike.
//
// Waits: for the peers, up to the communicator's deadline.
#pragma once

#include "base/result.h"
#include "tp_worker/groups/communicator.h"
#include "tp_worker/model/update_room.h"

namespace pitstop::tp_worker {

// Returns whether it holds on every rank.
Result<bool> holds_on_all(bool holds, Communicator& communicator);

// Returns the facts under which what fits fits on every rank, of each number the worst. Host memory
// is a machine's, and its ranks share it.
Result<RoomFacts> facts_of_all(const RoomFacts& own, Communicator& communicator);

}  // namespace pitstop::tp_worker
