// Facts that the ranks of a replica collect together at the start, each from its own GPU, so that
// all of them decide alike.
//
// Waits: for the peers, up to the communicator's deadline.
#pragma once

#include "base/result.h"
#include "tp_worker/groups/communicator.h"
#include "tp_worker/model/update_room.h"

namespace pitstop::tp_worker {

// Returns whether the condition is true on every rank.
Result<bool> holds_on_all(bool holds, Communicator& communicator);

// Returns facts with which what fits fits on every rank: the worst of each number. Host memory
// belongs to a machine, and its ranks share it.
Result<RoomFacts> facts_of_all(const RoomFacts& own, Communicator& communicator);

}  // namespace pitstop::tp_worker
