// Summarizes the load of experts (messages/routes.h) in a bounded number of values: /metrics has
// four per layer, the status page shows a grid.
#pragma once

#include "messages/routes.h"

#include <cstdint>
#include <vector>

namespace pitstop::http {

inline constexpr std::int64_t kLoadRowsMax = 128;     // the first layers with experts
inline constexpr std::int64_t kLoadColumnsMax = 128;  // of the grid; more experts share columns

// The load of a layer whose experts have computed tokens.
struct LayerLoad {
    std::int64_t layer = 0;
    std::int64_t tokens = 0;     // of all experts of the layer
    double busiest = 0;          // the busiest expert's tokens over the mean
    double least = 0;            // the least busy expert's tokens over the mean
    std::int64_t num_idle = 0;   // experts without a token
    std::vector<double> grid{};  // by column: the mean of its experts over the layer's mean
};

// Returns no entries if the table `load` is incomplete.
[[nodiscard]] std::vector<LayerLoad> layer_loads(const messages::ExpertLoad& load);

}  // namespace pitstop::http
