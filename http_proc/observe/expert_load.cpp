#include "http_proc/observe/expert_load.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace pitstop::http {
namespace {

bool is_whole(const messages::ExpertLoad& load) {
    return load.layers > 0 && load.num_experts > 0 &&
           load.layers <= messages::ExpertLoad::kCountsMax / load.num_experts &&
           std::ssize(load.tokens.values) == load.layers * load.num_experts;
}

std::vector<double> grid_of(std::span<const std::int64_t> tokens, double mean) {
    const std::int64_t num = std::ssize(tokens);
    const std::int64_t num_columns = std::min(num, kLoadColumnsMax);
    std::vector<double> grid;
    for (std::int64_t c = 0; c < num_columns; ++c) {
        const std::int64_t begin = c * num / num_columns;
        const std::int64_t end = (c + 1) * num / num_columns;
        const auto sum = static_cast<double>(
            std::accumulate(tokens.begin() + begin, tokens.begin() + end, std::int64_t{0})
        );
        grid.push_back(sum / static_cast<double>(end - begin) / mean);
    }
    return grid;
}

}  // namespace

std::vector<LayerLoad> layer_loads(const messages::ExpertLoad& load) {
    std::vector<LayerLoad> all;
    if (!is_whole(load)) return all;
    for (std::int64_t layer = 0; layer < load.layers && std::ssize(all) < kLoadRowsMax; ++layer) {
        const auto tokens = std::span(load.tokens.values)
                                .subspan(
                                    static_cast<std::size_t>(layer * load.num_experts),
                                    static_cast<std::size_t>(load.num_experts)
                                );
        const std::int64_t sum = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
        if (sum <= 0) continue;  // the layer has no experts, or they have computed no token
        const double mean = static_cast<double>(sum) / static_cast<double>(load.num_experts);
        const auto [least, busiest] = std::ranges::minmax(tokens);
        all.push_back(
            {.layer = layer,
             .tokens = sum,
             .busiest = static_cast<double>(busiest) / mean,
             .least = static_cast<double>(least) / mean,
             .num_idle = std::ranges::count(tokens, 0),
             .grid = grid_of(tokens, mean)}
        );
    }
    return all;
}

}  // namespace pitstop::http
