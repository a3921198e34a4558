#include "tp_worker/blocks/product_tuning.h"

#include "kernels/linear_tuning.h"

#include <algorithm>
#include <deque>
#include <vector>

namespace pitstop::tp_worker {
namespace {

// Products of one shape from several blocks are timed in turn, so that their weights are not in the
// caches, as in a step.
constexpr std::size_t kRotationMax = 8;
using Alike = std::vector<const Product*>;

bool are_alike(const Product& a, const Product& b, const BoundWeights& weights) {
    if (a.x.dtype != b.x.dtype || a.x.cols != b.x.cols) return false;
    return std::ranges::equal(
        a.parts,
        b.parts,
        [&](const Product::Part& one, const Product::Part& other) {
            return weights.matrix(one.w).rows == weights.matrix(other.w).rows &&
                   one.bias.has_value() == other.bias.has_value() && one.y.dtype == other.y.dtype;
        }
    );
}

std::vector<Alike> alike_among(
    const std::vector<const Product*>& all, const BoundWeights& weights
) {
    std::vector<Alike> groups;
    for (const Product* product : all) {
        const auto group = std::ranges::find_if(groups, [&](const Alike& alike) {
            return are_alike(*alike.front(), *product, weights);
        });
        if (group == groups.end()) {
            groups.push_back({product});
        } else if (group->size() < kRotationMax) {
            group->push_back(product);
        }
    }
    return groups;
}

int tune(
    const Alike& alike, const Trunk& trunk, const BoundWeights& weights, std::int64_t num_rows
) {
    std::deque<ProductArgs> args;
    std::vector<kernels::LinearArgs> rotation;
    for (const Product* product : alike)
        rotation.push_back(args.emplace_back(*product, trunk, weights, num_rows).args());
    return trunk.ops->tune_linear(rotation);
}

}  // namespace

int tune_products(const Stack& stack, const BoundWeights& weights) {
    const Trunk& trunk = stack.trunk();
    if (trunk.ops->tune_linear == nullptr) return 0;
    std::vector<Alike> groups = alike_among(stack.products(), weights);
    groups.push_back({&stack.head().product()});
    int num_timed = 0;
    for (const Alike& alike : groups) {
        const std::int64_t rows_max = alike.front()->x.rows;
        for (std::int64_t M = 1; M <= rows_max; M = kernels::gemm_bucket(M) + 1)
            num_timed += tune(alike, trunk, weights, std::min(kernels::gemm_bucket(M), rows_max));
    }
    return num_timed;
}

}  // namespace pitstop::tp_worker
