#include "kernels/router.h"

#include "base/bf16.h"
#include "kernels/cpu/levels.h"
#include "kernels/reference.h"
#include "kernels/runtime/thread_pool.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

namespace pitstop::kernels {
namespace {

// A NaN is ordered after every number.
float order_of(float logit) { return std::isnan(logit) ? kNegInf : logit; }

bool is_wrong(float logit) {
    return std::isnan(logit) || logit == std::numeric_limits<float>::infinity();
}

float as_weight(float weight, bool is_rounded) {
    return is_rounded ? to_float(to_bf16(weight)) : weight;
}

// The k largest so far, in order.
class Chosen {
  public:
    explicit Chosen(std::int64_t k) : k_(k) {}

    void offer(std::int32_t expert, float logit) {
        if (size_ == k_ && !(logit > logits_[static_cast<std::size_t>(k_ - 1)])) return;
        std::int64_t at = size_ < k_ ? size_++ : k_ - 1;
        for (; at > 0 && logit > logits_[static_cast<std::size_t>(at - 1)]; --at) {
            logits_[static_cast<std::size_t>(at)] = logits_[static_cast<std::size_t>(at - 1)];
            experts_[static_cast<std::size_t>(at)] = experts_[static_cast<std::size_t>(at - 1)];
        }
        logits_[static_cast<std::size_t>(at)] = logit;
        experts_[static_cast<std::size_t>(at)] = expert;
    }
    [[nodiscard]] std::span<const std::int32_t> experts() const {
        return std::span(experts_).first(static_cast<std::size_t>(size_));
    }

  private:
    std::int64_t k_;
    std::int64_t size_ = 0;
    std::array<float, RouteArgs::kChosenMax> logits_{};
    std::array<std::int32_t, RouteArgs::kChosenMax> experts_{};
};

// Writes the experts and their weights, with the same sums for chosen and for given experts.
void write_row(const RouteArgs& args, std::int64_t t, std::span<const std::int32_t> experts) {
    const float* const logits = args.logits.data + t * args.logits.stride;
    const std::int64_t E = args.logits.cols;
    float max = kNegInf;
    float sum = 0.f;
    if (args.norm == RouterNorm::kAll) {
        for (std::int64_t e = 0; e < E; ++e) max = std::max(max, order_of(logits[e]));
        for (std::int64_t e = 0; e < E; ++e) sum += std::exp(logits[e] - max);
    } else {
        for (const std::int32_t expert : experts) max = std::max(max, order_of(logits[expert]));
        for (const std::int32_t expert : experts) sum += std::exp(logits[expert] - max);
    }
    // A logit that is not finite need not be among the experts.
    for (std::int64_t e = 0; e < E; ++e) {
        if (is_wrong(logits[e])) sum = std::numeric_limits<float>::quiet_NaN();
    }
    for (std::size_t j = 0; j < experts.size(); ++j) {
        const auto at = static_cast<std::int64_t>(j);
        args.experts.data[t * args.experts.stride + at] = experts[j];
        args.weights.data[t * args.weights.stride + at] =
            as_weight(std::exp(logits[experts[j]] - max) / sum, args.rounds_weights);
    }
}

void route_row(const RouteArgs& args, std::int64_t t) {
    const float* const logits = args.logits.data + t * args.logits.stride;
    Chosen chosen(args.experts.cols);
    for (std::int64_t e = 0; e < args.logits.cols; ++e)
        chosen.offer(static_cast<std::int32_t>(e), order_of(logits[e]));
    write_row(args, t, chosen.experts());
}

std::int32_t given_id(const FollowRoutesArgs& args, std::int64_t i, std::int64_t j) {
    const std::uint8_t* const id = args.given + i * args.row_bytes + j * args.id_bytes;
    return args.id_bytes == 1 ? id[0] : id[0] + 256 * id[1];
}

}  // namespace

void check(const RouteArgs& args) {
    const std::int64_t T = args.logits.rows;
    const std::int64_t k = args.experts.cols;
    CHECK(args.logits.cols >= 1 && args.logits.cols <= RouteArgs::kExpertsMax);
    CHECK(k >= 1 && k <= args.logits.cols && k <= RouteArgs::kChosenMax);
    CHECK(args.experts.rows == T && args.weights.rows == T && args.weights.cols == k);
    CHECK(is_valid(args.logits) && is_valid(ConstActView(args.weights)));
}

void route_ref(const RouteArgs& args) {
    check(args);
    for (std::int64_t t = 0; t < args.logits.rows; ++t) {
        const auto logit = [&](std::int32_t e) {
            return double{args.logits.data[t * args.logits.stride + e]};
        };
        std::vector<std::int32_t> order(static_cast<std::size_t>(args.logits.cols));
        std::iota(order.begin(), order.end(), 0);
        std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) {
            const double at_a = std::isnan(logit(a)) ? double{kNegInf} : logit(a);
            const double at_b = std::isnan(logit(b)) ? double{kNegInf} : logit(b);
            return at_a > at_b;
        });
        const std::int64_t k = args.experts.cols;
        double all = 0.0;
        double of_chosen = 0.0;
        for (std::size_t i = 0; i < order.size(); ++i) {
            const double p = std::exp(logit(order[i]) - logit(order[0]));
            all += p;
            if (static_cast<std::int64_t>(i) < k) of_chosen += p;
        }
        const double sum = args.norm == RouterNorm::kAll || std::isnan(all) ? all : of_chosen;
        for (std::int64_t j = 0; j < k; ++j) {
            const std::int32_t expert = order[static_cast<std::size_t>(j)];
            args.experts.data[t * args.experts.stride + j] = expert;
            const double weight = std::exp(logit(expert) - logit(order[0])) / sum;
            args.weights.data[t * args.weights.stride + j] =
                as_weight(static_cast<float>(weight), args.rounds_weights);
        }
    }
}

void check(const FollowRoutesArgs& args) {
    check(args.route);
    CHECK(args.id_bytes == 1 || args.id_bytes == 2);
    CHECK(args.num_rows >= 0 && args.num_rows <= args.route.logits.rows);
    CHECK(args.num_rows == 0 || (args.given != nullptr && args.token_rows != nullptr));
}

void follow_routes_ref(const FollowRoutesArgs& args) {
    check(args);
    const RouteArgs& route = args.route;
    for (std::int64_t i = 0; i < args.num_rows; ++i) {
        const std::int64_t t = args.token_rows[i];
        const auto logit = [&](std::int64_t e) {
            return double{route.logits.data[t * route.logits.stride + e]};
        };
        double top = -std::numeric_limits<double>::infinity();
        for (std::int64_t e = 0; e < route.logits.cols; ++e) top = std::max(top, logit(e));
        double all = 0.0;
        for (std::int64_t e = 0; e < route.logits.cols; ++e) all += std::exp(logit(e) - top);
        double of_given = 0.0;
        for (std::int64_t j = 0; j < route.experts.cols; ++j)
            of_given += std::exp(logit(given_id(args, i, j)) - top);
        // If any logit is not finite, `all` is NaN.
        const double sum = route.norm == RouterNorm::kAll || std::isnan(all) ? all : of_given;
        for (std::int64_t j = 0; j < route.experts.cols; ++j) {
            const std::int32_t expert = given_id(args, i, j);
            route.experts.data[t * route.experts.stride + j] = expert;
            route.weights.data[t * route.weights.stride + j] = as_weight(
                static_cast<float>(std::exp(logit(expert) - top) / sum), route.rounds_weights
            );
        }
    }
}

void follow_routes_cpu(const FollowRoutesArgs& args) {
    check(args);
    std::array<std::int32_t, RouteArgs::kChosenMax> experts{};
    const auto k = static_cast<std::size_t>(args.route.experts.cols);
    for (std::int64_t i = 0; i < args.num_rows; ++i) {
        for (std::size_t j = 0; j < k; ++j)
            experts[j] = given_id(args, i, static_cast<std::int64_t>(j));
        write_row(args.route, args.token_rows[i], std::span(experts).first(k));
    }
}

void route_cpu(const RouteArgs& args) {
    check(args);
    constexpr std::int64_t kLogitsPerRange =
        4096;  // about 5 us: with fewer it is not worth waking a thread
    auto rows = [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t t = begin; t < end; ++t) route_row(args, t);
    };
    const std::int64_t grain = std::max<std::int64_t>(1, kLogitsPerRange / args.logits.cols);
    parallel_for(args.stream, args.logits.rows, grain, rows);
}

}  // namespace pitstop::kernels
