// The states that blocks keep for requests between steps, besides pages. Each slot has one state,
// of fixed size; checkpoints are copies of states. Each block declares its part of a state; the
// declarations determine a state's bytes, and the pool:
//
//   pool = [num_slots + num_checkpoints][blocks]
//
// Slots and checkpoints are the scheduler's, and the same on every rank.
#pragma once

#include "base/ids.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pitstop::tp_worker {

// A block's number among the blocks that keep a state.
enum class StateId : std::int32_t {};

// The declarations of a rank's blocks.
class StatePlan {
  public:
    // A recurrent state, and inputs of a convolution, both in fp32.
    struct State {
        std::int64_t num_recurrent = 0;  // elements
        std::int64_t num_inputs = 0;     // elements
    };
    StateId add(const State& state);
    [[nodiscard]] bool is_empty() const { return offsets_.empty(); }
    // Bytes of one state of all blocks; 0: no block keeps a state.
    [[nodiscard]] std::int64_t state_bytes() const { return bytes_; }

    struct Offsets {
        std::int64_t recurrent = 0;  // bytes from the state's start
        std::int64_t inputs = 0;     // bytes from the state's start
    };
    [[nodiscard]] const Offsets& offsets(StateId id) const {
        return offsets_[static_cast<std::size_t>(raw(id))];
    }

  private:
    std::vector<Offsets> offsets_{};
    std::int64_t bytes_ = 0;
};

class StatePool {
  public:
    StatePool(const StatePlan& plan, std::int64_t num_places)
        : plan_(plan), bytes_(num_places * plan.state_bytes()) {}

    [[nodiscard]] std::int64_t bytes() const { return bytes_; }
    // Returns where a pool may begin, at or after `offset`.
    [[nodiscard]] static std::int64_t aligned(std::int64_t offset);
    // `memory` is the pool's, of bytes() bytes, 64-byte aligned.
    void place(std::byte* memory) { memory_ = memory; }

    // A block's part of the pool's first state; the parts in later states are state_bytes apart.
    struct Part {
        float* recurrent = nullptr;
        float* inputs = nullptr;
        std::int64_t state_bytes = 0;
    };
    [[nodiscard]] Part part(StateId id) const;

  private:
    StatePlan plan_;
    std::int64_t bytes_;
    std::byte* memory_ = nullptr;
};

}  // namespace pitstop::tp_worker
