// The recurrent states of fake workers: one per slot, and one per checkpoint. A state records its
// tokens, their number and their epochs. So the workers notice a row that continues from another
// request's state, from an older state or from an overwritten one.
#pragma once

#include "messages/steps.h"
#include "scheduler_proc/epoch_range.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::scheduler {

struct FakeState {
    std::int64_t position = -1;  // the number of tokens before it; -1: garbage
    std::uint64_t prefix = 0;    // hash of these tokens
    EpochRange epochs{};         // of the weights that computed it
    friend bool operator==(const FakeState&, const FakeState&) = default;
};

class FakeStates {
  public:
    // Without slots, requests have no state.
    FakeStates(std::int64_t num_slots, std::int64_t num_checkpoints)
        : slots_(static_cast<std::size_t>(num_slots)),
          checkpoints_(static_cast<std::size_t>(num_checkpoints)) {}

    // Receives a plan. Returns an error if it saves to a checkpoint that a step in flight uses.
    [[nodiscard]] std::optional<std::string> receive(const messages::StepPlan& plan) {
        std::optional<std::string> problem;
        for (const messages::PlanRow& row : plan.rows) {
            const auto used = row.save_to ? last_use_.find(*row.save_to) : last_use_.end();
            if (used != last_use_.end() && used->second > done_)
                problem = fmt::format(
                    "step {} saves to checkpoint {}, which step {} in flight uses",
                    raw(plan.step),
                    raw(*row.save_to),
                    raw(used->second)
                );
        }
        for (const messages::PlanRow& row : plan.rows) {
            if (row.state_from) last_use_[*row.state_from] = plan.step;
            if (row.save_to) last_use_[*row.save_to] = plan.step;
        }
        return problem;
    }
    void begin_step(const messages::StepPlan& plan) {
        done_ = plan.step;
        if (slots_.empty()) return;
        for (const messages::RequestSetup& setup : plan.setups)
            slots_.at(static_cast<std::size_t>(raw(setup.slot))) = {};
    }
    // Begins a row from its state, which must be `want`. Returns what is wrong with the state.
    [[nodiscard]] std::optional<std::string> begin_row(
        const messages::PlanRow& row, const FakeState& want
    ) {
        if (slots_.empty()) return std::nullopt;
        FakeState& slot = slots_.at(static_cast<std::size_t>(raw(row.slot)));
        if (row.state_from) {
            slot = checkpoints_.at(static_cast<std::size_t>(raw(*row.state_from)));
        } else if (row.begin == 0) {
            slot = {.position = 0, .prefix = want.prefix};
        }
        if (slot == want) return std::nullopt;
        return fmt::format(
            "slot {} continues at {} from a state after {} tokens{}, under epochs {} to {} for {} "
            "to {}",
            raw(row.slot),
            row.begin,
            slot.position,
            slot.prefix == want.prefix ? "" : " of another prefix",
            raw(slot.epochs.min),
            raw(slot.epochs.max),
            raw(want.epochs.min),
            raw(want.epochs.max)
        );
    }
    // Advances the row's state by a token, to `after`.
    void advance(const messages::PlanRow& row, const FakeState& after) {
        if (slots_.empty()) return;
        slots_.at(static_cast<std::size_t>(raw(row.slot))) = after;
        if (!row.save_to || row.save_at != after.position) return;
        checkpoints_.at(static_cast<std::size_t>(raw(*row.save_to))) = after;
        ++num_saved_;
    }
    // Forgets all states, as after a release of the memory.
    void forget() {
        for (FakeState& state : slots_) state = {};
        for (FakeState& state : checkpoints_) state = {};
    }
    [[nodiscard]] std::int64_t num_saved() const { return num_saved_; }

  private:
    std::vector<FakeState> slots_;
    std::vector<FakeState> checkpoints_;
    std::map<messages::CheckpointId, StepId> last_use_{};
    StepId done_{};  // the running step: earlier ones are done
    std::int64_t num_saved_ = 0;
};

}  // namespace pitstop::scheduler
