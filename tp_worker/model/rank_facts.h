// Facts that the ranks of a replica exchange at the start, each about its own GPU, so that all make
// the same decisions.
//
// Waits: for the peers, up to the communicator's deadline.
#pragma once

#include "base/result.h"
#include "tp_worker/groups/communicator.h"
#include "tp_worker/model/update_room.h"

namespace pitstop::tp_worker {

// Returns whether the condition is true on every rank.
Result<bool> holds_on_all(bool holds, Communicator& communicator);

// Returns the worst of each number over the ranks, so that whatever fits by these facts fits on
// every rank. Host memory belongs to a machine, and its ranks share it.
Result<RoomFacts> facts_of_all(const RoomFacts& own, Communicator& communicator);

}  // namespace pitstop::tp_worker
