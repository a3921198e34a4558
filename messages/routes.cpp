#include "messages/routes.h"

#include "base/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace pitstop::messages {
namespace {

constexpr std::int64_t kLayersMax = 1 << 14;
constexpr std::int64_t kPerTokenMax = 1 << 10;
constexpr std::int64_t kNumExpertsMax = 1 << 16;  // an id has two bytes

std::int64_t id_at(std::span<const std::uint8_t> rows, std::int64_t index, std::int64_t id_bytes) {
    const auto at = static_cast<std::size_t>(index * id_bytes);
    return id_bytes == 1 ? rows[at] : rows[at] + 256 * rows[at + 1];
}

void append_span(std::vector<RouteSpan>& spans, const RouteSpan& next) {
    if (!spans.empty() && spans.back().epoch == next.epoch) {
        spans.back().rows += next.rows;
    } else {
        spans.push_back(next);
    }
}

}  // namespace

std::int64_t Routes::num_rows() const {
    const std::int64_t row_bytes = shape.row_bytes();
    return row_bytes == 0 ? 0 : std::ssize(experts.values) / row_bytes;
}

void Routes::append(Routes next) {
    experts.values.insert(
        experts.values.end(), next.experts.values.begin(), next.experts.values.end()
    );
    for (const RouteSpan& span : next.spans) append_span(spans, span);
}

void Routes::append(std::span<const std::uint8_t> rows, Epoch epoch) {
    CHECK(shape.row_bytes() > 0 && std::ssize(rows) % shape.row_bytes() == 0);
    if (rows.empty()) return;
    experts.values.insert(experts.values.end(), rows.begin(), rows.end());
    append_span(spans, {.epoch = epoch, .rows = std::ssize(rows) / shape.row_bytes()});
}

void Routes::keep(std::int64_t num) {
    CHECK(num >= 0 && num <= num_rows());
    experts.values.resize(static_cast<std::size_t>(num * shape.row_bytes()));
    std::int64_t left = num;
    std::erase_if(spans, [&](RouteSpan& span) {
        span.rows = std::min(span.rows, left);
        left -= span.rows;
        return span.rows == 0;
    });
}

void append_routes(std::optional<Routes>& whole, std::optional<Routes> next) {
    if (!next) return;
    if (whole) {
        whole->append(*std::move(next));
    } else {
        whole = std::move(next);
    }
}

void add_load(std::optional<ExpertLoad>& sum, std::optional<ExpertLoad> next) {
    if (!next) return;
    if (!sum) {
        sum = std::move(next);
        return;
    }
    std::vector<std::int64_t>& counts = sum->tokens.values;
    const std::vector<std::int64_t>& more = next->tokens.values;
    if (sum->layers != next->layers || sum->num_experts != next->num_experts ||
        counts.size() != more.size())
        return;
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += more[i];
}

std::int64_t BroughtRoutes::num_rows() const {
    const std::int64_t row_bytes = shape.row_bytes();
    return row_bytes == 0 ? 0 : std::ssize(experts.values) / row_bytes;
}

std::optional<std::string> problem_of_rows(
    const RouteShape& shape,
    std::span<const std::int64_t> dense_layers,
    std::span<const std::uint8_t> rows
) {
    const std::int64_t k = shape.per_token;
    std::vector<bool> is_dense(static_cast<std::size_t>(shape.layers));
    for (const std::int64_t layer : dense_layers) is_dense[static_cast<std::size_t>(layer)] = true;
    // By id: the number of the last choice with this id, counted from 1. Searching all earlier
    // entries would be slow.
    std::vector<std::int64_t> last_with(static_cast<std::size_t>(shape.num_experts));
    const std::int64_t num_choices = std::ssize(rows) / (k * shape.id_bytes());
    for (std::int64_t choice = 0; choice < num_choices; ++choice) {
        const std::int64_t layer = choice % shape.layers;
        const auto problem = [&](std::int64_t j, std::int64_t id, std::string_view why) {
            return fmt::format(
                "token {}, layer {}, entry {} is expert {}{}",
                choice / shape.layers,
                layer,
                j,
                id,
                why
            );
        };
        for (std::int64_t j = 0; j < k; ++j) {
            const std::int64_t id = id_at(rows, choice * k + j, shape.id_bytes());
            if (is_dense[static_cast<std::size_t>(layer)]) {
                if (id == 0) continue;
                return problem(j, id, "; this layer has no experts: its entries are 0");
            }
            if (id >= shape.num_experts) {
                return problem(
                    j, id, fmt::format("; the model has experts [0, {})", shape.num_experts)
                );
            }
            std::int64_t& last = last_with[static_cast<std::size_t>(id)];
            if (std::exchange(last, choice + 1) == choice + 1)
                return problem(j, id, ", as an entry before it; a token has each expert once");
        }
    }
    return std::nullopt;
}

std::optional<std::string> invalid(const BroughtRoutes& routes) {
    if (auto problem = invalid(routes.shape)) return problem;
    const std::int64_t num_bytes = std::ssize(routes.experts.values);
    if (num_bytes > BroughtRoutes::kBytesMax) {
        return fmt::format(
            "routes of {} bytes; at most {} are accepted", num_bytes, BroughtRoutes::kBytesMax
        );
    }
    if (num_bytes > 0 && num_bytes % routes.shape.row_bytes() == 0) return std::nullopt;
    return fmt::format(
        "routes of {} bytes; accepted are whole rows of {} bytes, at least one",
        num_bytes,
        routes.shape.row_bytes()
    );
}

std::optional<std::string> invalid_dense_layers(
    const RouteShape& shape, std::span<const std::int64_t> dense_layers
) {
    std::int64_t least = 0;
    for (const std::int64_t layer : dense_layers) {
        if (layer < least || layer >= shape.layers) {
            return fmt::format(
                "dense_layers has {}; accepted are ascending layers of [0, {})", layer, shape.layers
            );
        }
        least = layer + 1;
    }
    return std::nullopt;
}

std::optional<std::string> invalid(const RouteShape& shape) {
    const auto is_within = [](std::int64_t value, std::int64_t max) {
        return value >= 1 && value <= max;
    };
    if (is_within(shape.layers, kLayersMax) && is_within(shape.per_token, kPerTokenMax) &&
        is_within(shape.num_experts, kNumExpertsMax)) {
        return std::nullopt;
    }
    return fmt::format(
        "routes of {} layers, {} experts a token, {} experts; accepted are 1 to {}, {} and {}",
        shape.layers,
        shape.per_token,
        shape.num_experts,
        kLayersMax,
        kPerTokenMax,
        kNumExpertsMax
    );
}

}  // namespace pitstop::messages
