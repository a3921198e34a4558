#include "messages/routes.h"

#include "base/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pitstop::messages {
namespace {

constexpr std::int64_t kLayersMax = 1 << 14;
constexpr std::int64_t kPerTokenMax = 1 << 10;
constexpr std::int64_t kNumExpertsMax = 1 << 16;  // an id has two bytes

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
