// The recurrent states of a replica's model workers: one per slot, and one per checkpoint. A state
// here is its history: the chain of its tokens and the epoch of each. A row must continue from the
// state of its own context, computed under the epochs that its KV names.
#pragma once

#include "messages/steps.h"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::sim {

class StateBook {
  public:
    StateBook(std::int64_t num_slots, std::int64_t num_checkpoints, std::int64_t page_size)
        : page_size_(page_size),
          slots_(static_cast<std::size_t>(num_slots)),
          checkpoints_(static_cast<std::size_t>(num_checkpoints)) {}

    // A plan arrives at the worker. It must not save to a checkpoint that a step after the running
    // one uses. Returns what is wrong, or nothing.
    [[nodiscard]] std::optional<std::string> expect(const messages::StepPlan& plan);
    void begin_step(const messages::StepPlan& plan);

    struct Before {
        std::uint64_t chain = 0;          // of the tokens before the row
        std::span<const Epoch> epochs{};  // of their KV
    };
    // Returns what is wrong with the state that the row continues from, or nothing.
    [[nodiscard]] std::optional<std::string> begin_row(
        const messages::PlanRow& row, const Before& before
    );
    // The row's next token changes its state.
    void advance(const messages::PlanRow& row, std::uint64_t chain, Epoch epoch, bool is_finite);
    [[nodiscard]] bool is_finite(SlotId slot) const { return at(slot).is_finite; }

    // The memory was released.
    void forget();

    std::int64_t num_saved = 0;
    std::int64_t num_restored = 0;

  private:
    struct State {
        bool is_known = false;  // false: garbage
        std::uint64_t chain = 0;
        std::vector<Epoch> epochs{};  // by position
        bool is_finite = true;
        StepId saved{};  // of a checkpoint: by this step
    };
    [[nodiscard]] State& at(SlotId slot) { return slots_[static_cast<std::size_t>(raw(slot))]; }
    [[nodiscard]] const State& at(SlotId slot) const {
        return slots_[static_cast<std::size_t>(raw(slot))];
    }
    // Returns the first page whose KV has other epochs than the state, or nothing.
    [[nodiscard]] std::optional<std::int64_t> differing_page(
        std::span<const Epoch> state, std::span<const Epoch> kv
    ) const;

    std::int64_t page_size_;
    std::vector<State> slots_;
    std::vector<State> checkpoints_;
    std::map<messages::CheckpointId, StepId> last_use_{};
    StepId running_{};  // earlier steps are done
};

}  // namespace pitstop::sim
