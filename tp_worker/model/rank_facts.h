// What the ranks of a replica find out together at the start, each of its own GPU, so that all of
// them decide alike.
//
// Waits: for the peers, up to the communicator's deadline.
#pragma once

#include "base/result.h"
#include "tp_worker/groups/communicator.h"
#include "tp_worker/model/update_room.h"

namespace pitstop::tp_worker {

// Whether it holds on every rank.
Result<bool> holds_on_all(bool holds, Communicator& communicator);

// The facts under which what fits fits on every rank: of each number the worst. Host memory is a
// machine's, and its ranks share it.
Result<RoomFacts> facts_of_all(const RoomFacts& own, Communicator& communicator);

}  // namespace pitstop::tp_worker
