// Facts that the ranks of a replica exchange at the start, each about its own GPU, so that all make
// the same decisions.
//
// Waits: for the peers, up to the communicator's deadline.
#pragma once

#include "base/result.h"
#include "tp_worker/model/update_room.h"
#include "tp_worker/ranks/communicator.h"

namespace pitstop::tp_worker {

// Returns whether the condition is true on every rank.
Result<bool> holds_on_all(bool holds, Communicator& communicator);

// The states of a model's requests (blocks/state_pool.h), as this rank knows them.
struct StatesAsked {
    std::int64_t state_bytes = 0;  // 0: the model has none
    std::int64_t num_slots = 0;
    std::int64_t num_checkpoints = 0;  // 0: chosen from the memory left
};
// Adds the states to the facts, before KV: a request needs one to run. Returns how many checkpoints
// all ranks have. check_states() finds from all ranks' facts whether anything is left for KV.
Result<std::int64_t> add_states(
    const StatesAsked& states, RoomFacts* own, Communicator& communicator
);

// Errors: kResourceExhausted, with the numbers, if a rank has nothing left for KV besides the
// states of this many checkpoints. All ranks get the error, because all have the same facts.
[[nodiscard]] Result<> check_states(
    const StatesAsked& states, std::int64_t num_checkpoints, const RoomFacts& of_all
);

// Returns the worst of each number over the ranks, so that a size that fits by these facts fits on
// every rank. Host memory belongs to a machine, and its ranks share it.
Result<RoomFacts> facts_of_all(const RoomFacts& own, Communicator& communicator);

}  // namespace pitstop::tp_worker
