#include "bench/percentiles.h"

#include "base/check.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace pitstop::bench {

double percentile(std::span<const double> sorted, double q) {
    CHECK(!sorted.empty() && q > 0 && q <= 1);
    // 0.99 * 100 is a little above 99 in binary, which must not become rank 100.
    const double rank = std::ceil(q * static_cast<double>(sorted.size()) - 1e-9);
    return sorted[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
}

Summary summarize(std::vector<double> values) {
    if (values.empty()) return {};
    std::sort(values.begin(), values.end());
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    return {
        .count = values.size(),
        .mean = sum / static_cast<double>(values.size()),
        .p50 = percentile(values, 0.50),
        .p90 = percentile(values, 0.90),
        .p99 = percentile(values, 0.99),
        .max = values.back(),
    };
}

}  // namespace pitstop::bench
