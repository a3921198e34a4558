#include "tp_worker/model/step_adapters.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pitstop::tp_worker {

// Consecutive rows with the same adapter are one run of tokens.
Result<> StepAdapters::find(const messages::StepPlan& plan, const Adapters& adapters, Rank rank) {
    adapted_.clear();
    std::int64_t begin = 0;
    for (std::size_t r = 0; r < plan.rows.size(); begin += plan.rows[r].num_new, ++r) {
        const messages::PlanRow& row = plan.rows[r];
        if (!row.adapter) continue;
        const Adapter* const adapter = adapters.find(*row.adapter);
        if (adapter == nullptr) {
            return make_error(
                ErrorCode::kFailedPrecondition,
                "step {}, row {}: rank {} has no adapter of update {}",
                raw(plan.step),
                r,
                raw(rank),
                static_cast<std::uint64_t>(*row.adapter)
            );
        }
        const bool goes_on = !adapted_.empty() && adapted_.back().adapter == &adapter->bound() &&
                             adapted_.back().begin + adapted_.back().num == begin;
        if (goes_on) {
            adapted_.back().num += row.num_new;
        } else {
            adapted_.push_back({.begin = begin, .num = row.num_new, .adapter = &adapter->bound()});
        }
    }
    return Ok{};
}

void StepAdapters::put_into(StepBatch& batch, bool is_on_gpu) {
    if (!is_on_gpu) {
        batch.adapted = adapted_;
        return;
    }
    if (adapted_.empty()) return;
    const std::size_t num =
        std::max(batch.tokens.size(), static_cast<std::size_t>(batch.num_padded));
    tables_.assign(num, nullptr);
    for (const AdaptedTokens& tokens : adapted_)
        std::fill_n(tables_.begin() + tokens.begin, tokens.num, tokens.adapter->table());
    batch.adapter_tables = tables_;
}

}  // namespace pitstop::tp_worker
