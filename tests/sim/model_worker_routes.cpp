// The worker's experts: each token's pass uses the routes that its request brings, or the router's
// choice, and reports what it used.
#include "tests/sim/model_worker.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::sim {

std::optional<std::string> ModelWorker::begin_routes(
    const PlacedRow& placed, RequestKey key, std::int64_t position, Context& context
) {
    if (!shape_.routes) return std::nullopt;
    const messages::TokenizedRequest& request = oracle_.request(key);
    const auto wanted = RouteBook::brought_by(request, *shape_.routes, position);
    context.routes.clear();
    const std::int64_t index = position - placed.row.begin;
    if (index < placed.row.num_brought) {
        const auto row_bytes = static_cast<std::size_t>(shape_.routes->row_bytes());
        const auto at = placed.first_brought + static_cast<std::size_t>(index);
        const auto given = std::span(placed.plan.routes.values).subspan(at * row_bytes, row_bytes);
        context.routes.assign(given.begin(), given.end());
    }
    if (!std::ranges::equal(context.routes, wanted)) {
        return fmt::format(
            "position {} follows {} routes, and its request brings {}",
            position,
            context.routes.empty() ? "no" : "other",
            wanted.empty() ? "none" : "some"
        );
    }
    context.brought = RouteBook::with_brought(context.brought, request, *shape_.routes, position);
    return std::nullopt;
}

void ModelWorker::end_routes(
    const PlacedRow& placed,
    std::int64_t position,
    const Context& context,
    messages::StepResult& result
) const {
    if (!shape_.routes) return;
    const messages::PlanRow& row = placed.row;
    if (position < row.begin + row.num_new - row.num_routed) return;
    RouteBook::Row used = context.routes;
    if (used.empty())
        used = RouteBook::chosen(*shape_.routes, context.chain, context.brought, live_);
    result.routes.values.insert(result.routes.values.end(), used.begin(), used.end());
}

}  // namespace pitstop::sim
