#include "tests/sim/state_book.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::sim {

std::optional<std::string> StateBook::expect(const messages::StepPlan& plan) {
    std::optional<std::string> problem;
    const auto check = [&](const messages::PlanRow& row) {
        for (const auto& id : {row.state_from, row.save_to}) {
            if (id && static_cast<std::size_t>(raw(*id)) >= checkpoints_.size())
                problem = fmt::format("no checkpoint {}", raw(*id));
        }
        if (!row.save_to) return;
        const auto used = last_use_.find(*row.save_to);
        if (used == last_use_.end() || used->second <= running_) return;
        problem = fmt::format(
            "step {} saves to checkpoint {}, which step {} is still to use",
            raw(plan.step),
            raw(*row.save_to),
            raw(used->second)
        );
    };
    for (const messages::PlanRow& row : plan.rows) check(row);
    for (const messages::PlanRow& row : plan.rows) {
        if (row.state_from) last_use_[*row.state_from] = plan.step;
        if (row.save_to) last_use_[*row.save_to] = plan.step;
    }
    return problem;
}

void StateBook::begin_step(const messages::StepPlan& plan) {
    running_ = plan.step;
    for (const messages::RequestSetup& setup : plan.setups) at(setup.slot) = {};
}

std::optional<std::int64_t> StateBook::differing_page(
    std::span<const Epoch> state, std::span<const Epoch> kv
) const {
    const auto num = std::ssize(kv);
    for (std::int64_t begin = 0; begin < num; begin += page_size_) {
        const auto first = static_cast<std::size_t>(begin);
        const auto count = static_cast<std::size_t>(std::min(page_size_, num - begin));
        const auto a = std::ranges::minmax(state.subspan(first, count));
        const auto b = std::ranges::minmax(kv.subspan(first, count));
        if (a.min != b.min || a.max != b.max) return begin / page_size_;
    }
    return std::nullopt;
}

std::optional<std::string> StateBook::begin_row(
    const messages::PlanRow& row, const Before& before
) {
    State& state = at(row.slot);
    if (row.state_from) {
        state = checkpoints_[static_cast<std::size_t>(raw(*row.state_from))];
        ++num_restored;
    } else if (row.begin == 0) {
        state = {.is_known = true};
    }
    if (!state.is_known)
        return fmt::format("position {} continues from a state that is garbage", row.begin);
    if (std::ssize(state.epochs) != row.begin || state.chain != before.chain) {
        return fmt::format(
            "position {} continues from the state after {} tokens{}",
            row.begin,
            state.epochs.size(),
            state.chain == before.chain ? "" : " of another context"
        );
    }
    if (const auto page = differing_page(state.epochs, before.epochs)) {
        return fmt::format(
            "position {} continues from a state of other epochs than the KV of page {} (P9)",
            row.begin,
            *page
        );
    }
    if (row.state_from && !state.is_finite && raw(state.saved) + 1 < raw(running_)) {
        return fmt::format(
            "position {} continues from a state that is not finite, of step {}",
            row.begin,
            raw(state.saved)
        );
    }
    return std::nullopt;
}

void StateBook::advance(
    const messages::PlanRow& row, std::uint64_t chain, Epoch epoch, bool is_finite
) {
    State& state = at(row.slot);
    state.chain = chain;
    state.epochs.push_back(epoch);
    state.is_finite = state.is_finite && is_finite;
    if (!row.save_to || row.save_at != std::ssize(state.epochs)) return;
    state.saved = running_;
    checkpoints_[static_cast<std::size_t>(raw(*row.save_to))] = state;
    ++num_saved;
}

void StateBook::forget() {
    for (State& state : slots_) state = {};
    for (State& state : checkpoints_) state = {};
}

}  // namespace pitstop::sim
