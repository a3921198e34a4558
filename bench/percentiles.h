// Sums up many measured values. The summary is exact: all values are kept and sorted.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace pitstop::bench {

// All fields but `count` are in the unit of the values, and are zero if there are no values.
struct Summary {
    std::size_t count = 0;
    double mean = 0;
    double p50 = 0;
    double p90 = 0;
    double p99 = 0;
    double max = 0;
};

// Returns the smallest value that at least the fraction `q` of all values do not exceed (nearest
// rank).
// REQUIRES: `sorted` is ascending and not empty, 0 < q <= 1.
[[nodiscard]] double percentile(std::span<const double> sorted, double q);

[[nodiscard]] Summary summarize(std::vector<double> values);

}  // namespace pitstop::bench
