#include "tests/sim/route_book.h"

#include "tests/sim/random.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::sim {

const std::vector<std::int64_t>& RouteBook::dense_layers() {
    static const std::vector<std::int64_t> layers{1};
    return layers;
}

RouteBook::Row RouteBook::row_of(const messages::RouteShape& shape, std::uint64_t number) {
    Row row;
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
        const bool is_dense = std::ranges::find(dense_layers(), layer) != dense_layers().end();
        const std::uint64_t first = hash_of(number, layer);
        for (std::int64_t j = 0; j < shape.per_token; ++j) {
            // Neighbouring experts, so that a token has each expert once.
            const auto num = static_cast<std::uint64_t>(shape.num_experts);
            const std::uint64_t id = is_dense ? 0 : (first + static_cast<std::uint64_t>(j)) % num;
            row.push_back(static_cast<std::uint8_t>(id));
            if (shape.id_bytes() == 2) row.push_back(static_cast<std::uint8_t>(id >> 8));
        }
    }
    return row;
}

RouteBook::Row RouteBook::chosen(
    const messages::RouteShape& shape, std::uint64_t chain, std::uint64_t brought, WeightsId weights
) {
    return row_of(shape, hash_of(chain, brought, static_cast<std::uint64_t>(weights), 17));
}

std::span<const std::uint8_t> RouteBook::brought_by(
    const messages::TokenizedRequest& request,
    const messages::RouteShape& shape,
    std::int64_t position
) {
    const std::span<const std::uint8_t> all = request.routed_experts.values;
    const std::int64_t row_bytes = shape.row_bytes();
    if ((position + 1) * row_bytes > std::ssize(all)) return {};
    return all.subspan(
        static_cast<std::size_t>(position * row_bytes), static_cast<std::size_t>(row_bytes)
    );
}

std::uint64_t RouteBook::with_brought(
    std::uint64_t before,
    const messages::TokenizedRequest& request,
    const messages::RouteShape& shape,
    std::int64_t position
) {
    for (const std::uint8_t byte : brought_by(request, shape, position))
        before = hash_of(before, byte);
    return before;
}

void RouteBook::computed(RequestKey key, std::int64_t position, Epoch epoch) {
    std::vector<std::set<Epoch>>& all = computed_[key];
    if (position >= std::ssize(all)) all.resize(static_cast<std::size_t>(position) + 1);
    all[static_cast<std::size_t>(position)].insert(epoch);
}

RouteBook::Problem RouteBook::problem_of(
    const messages::TokenizedRequest& request,
    const messages::OutputChunk& chunk,
    std::span<const TokenId> context,
    const WeightsAt& weights_at
) {
    const RequestKey key = request.key;
    if (!request.routed_experts_start) {
        if (!chunk.routes) return std::nullopt;
        return fmt::format("request {}: routes that nobody asked for", raw(key));
    }
    Told& told = told_.try_emplace(key, Told{.end = *request.routed_experts_start}).first->second;
    if (chunk.routes) {
        if (chunk.routes->start != told.end) {
            return fmt::format(
                "request {}: routes from token {} on, after those up to {}",
                raw(key),
                chunk.routes->start,
                told.end
            );
        }
        if (auto problem = problem_of_rows(request, *chunk.routes, context, weights_at))
            return problem;
        told.end += chunk.routes->num_rows();
    }
    // A request that ends before its first output gets no rows, unless it asked for its prompt
    // alone.
    const bool is_prompt_alone =
        chunk.finish && chunk.finish->reason == messages::FinishReason::kLength;
    const bool has_output = std::ssize(context) > std::ssize(request.prompt.values);
    if (!has_output && !is_prompt_alone) return std::nullopt;
    const std::int64_t end = std::max(std::ssize(context) - 1, *request.routed_experts_start);
    if (told.end == end) return std::nullopt;
    return fmt::format(
        "request {}: routes of tokens [{}, {}) after {} tokens, not up to {}",
        raw(key),
        *request.routed_experts_start,
        told.end,
        context.size(),
        end
    );
}

RouteBook::Problem RouteBook::problem_of_rows(
    const messages::TokenizedRequest& request,
    const messages::Routes& routes,
    std::span<const TokenId> context,
    const WeightsAt& weights_at
) {
    const messages::RouteShape& shape = routes.shape;
    const RequestKey key = request.key;
    Told& told = told_.at(key);
    std::vector<Epoch> epochs;  // of each row
    for (const messages::RouteSpan& span : routes.spans) {
        epochs.insert(epochs.end(), static_cast<std::size_t>(span.rows), span.epoch);
        if (told.epochs.insert(span.epoch).second && told.epochs.size() == 2) ++num_versions_mixed;
    }
    if (std::ssize(epochs) != routes.num_rows()) {
        return fmt::format(
            "request {}: spans of {} rows for {} rows (P3)",
            raw(key),
            epochs.size(),
            routes.num_rows()
        );
    }
    std::uint64_t chain = 0, brought = 0;
    const std::int64_t end = routes.start + routes.num_rows();
    if (end > std::ssize(context)) {
        return fmt::format(
            "request {}: routes up to token {} of {}", raw(key), end, context.size()
        );
    }
    for (std::int64_t position = 0; position < end; ++position) {
        chain = hash_of(chain, raw(context[static_cast<std::size_t>(position)]));
        brought = with_brought(brought, request, shape, position);
        if (position < routes.start) continue;
        const std::int64_t index = position - routes.start;
        const Epoch epoch = epochs[static_cast<std::size_t>(index)];
        const std::span<const std::uint8_t> own = brought_by(request, shape, position);
        const Row want = own.empty() ? chosen(shape, chain, brought, weights_at(epoch))
                                     : Row(own.begin(), own.end());
        const auto row = routes.experts.values.begin() + index * shape.row_bytes();
        if (!std::equal(want.begin(), want.end(), row)) {
            return fmt::format(
                "request {}: the routes of token {} are not those that {}",
                raw(key),
                position,
                own.empty() ? fmt::format("epoch {} chose (P3)", raw(epoch)) : "it brought"
            );
        }
        const std::vector<std::set<Epoch>>& passes = computed_[key];
        if (position >= std::ssize(passes) ||
            !passes[static_cast<std::size_t>(position)].contains(epoch)) {
            return fmt::format(
                "request {}: the routes of token {} are of no pass under epoch {} (P3)",
                raw(key),
                position,
                raw(epoch)
            );
        }
        ++num_rows_checked;
        if (!own.empty()) ++num_brought_checked;
    }
    return std::nullopt;
}

}  // namespace pitstop::sim
