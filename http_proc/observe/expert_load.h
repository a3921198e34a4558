// Summarizes the load of experts (messages/routes.h) in a bounded number of values: /metrics has
// four per layer, the status page a grid.
#pragma once

#include "messages/routes.h"

#include <cstdint>
#include <vector>

namespace pitstop::http {

inline constexpr std::int64_t kLoadRowsMax = 128;     // layers with experts, from the first on
inline constexpr std::int64_t kLoadColumnsMax = 128;  // of the grid; neighbours share one over it

// A layer with experts that have computed tokens.
struct LayerLoad {
    std::int64_t layer = 0;
    std::int64_t tokens = 0;     // of all its experts together
    double busiest = 0;          // the busiest expert's tokens over the mean
    double least = 0;            // the least busy expert's tokens over the mean
    std::int64_t num_idle = 0;   // experts without a token
    std::vector<double> grid{};  // by column, its experts' mean over the layer's mean
};

// Returns none if `load` is not a whole table.
[[nodiscard]] std::vector<LayerLoad> layer_loads(const messages::ExpertLoad& load);

}  // namespace pitstop::http
