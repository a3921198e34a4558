#include "tp_worker/model/draw_support.h"

#include <cstddef>
#include <limits>

namespace pitstop::tp_worker {

messages::DrawSupport support_of(View2<const float> logits, const Drawn& drawn, const StatsOp& op) {
    if (drawn.row.temperature == 0.f) return {.num_ids = 1, .ids = {drawn.id}};
    const kernels::SoftmaxRow row{.temperature = drawn.row.temperature, .kept_min = drawn.kept_min};
    const float inverse = 1.f / row.temperature;  // scaled as in the op
    messages::DrawSupport support;
    for (std::int64_t id = 0; id < logits.cols; ++id) {
        const float x = logits.data[id] * inverse;
        if (!(x >= row.kept_min && x > -std::numeric_limits<float>::infinity())) continue;
        if (++support.num_ids <= messages::kSupportMax)
            support.ids.push_back(static_cast<TokenId>(id));
    }
    if (support.num_ids > messages::kSupportMax) support.ids.clear();
    kernels::SoftmaxStats stats;
    op.ops->softmax_stats({
        .logits = logits,
        .rows = &row,
        .stats = &stats,
        .workspace = op.workspace,
        .stream = op.stream,
    });
    support.logprob = kernels::logprob(logits.data[raw(drawn.id)] * inverse, row.kept_min, stats);
    return support;
}

void find_supports(
    const LogitView& view,
    const DoneDraws& draws,
    const StatsOp& op,
    std::vector<messages::DrawSupport>& supports
) {
    for (std::size_t k = 0; k < view.rows.size(); ++k) {
        const std::size_t i = view.rows[k];
        const SampledRow& row = draws.rows[i];
        if (!row.has_support || row.is_edited != view.is_edited) continue;
        if (supports.empty()) supports.resize(draws.rows.size());
        if (raw(draws.ids[i]) < 0) continue;  // nothing was drawn
        const auto logits = pitstop::rows(view.logits, static_cast<std::int64_t>(k), 1);
        supports[i] = support_of(
            logits, {.row = view.draws[k], .id = draws.ids[i], .kept_min = draws.kept_mins[i]}, op
        );
    }
}

}  // namespace pitstop::tp_worker
