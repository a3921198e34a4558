#include "kernels/router.h"

#include "base/bf16.h"
#include "kernels/cpu/levels.h"
#include "kernels/reference.h"
#include "kernels/thread_pool.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace pitstop::kernels {
namespace {

// A NaN is ordered after every number.
float order_of(float logit) { return std::isnan(logit) ? kNegInf : logit; }

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
    [[nodiscard]] std::int32_t expert(std::int64_t j) const {
        return experts_[static_cast<std::size_t>(j)];
    }

  private:
    std::int64_t k_;
    std::int64_t size_ = 0;
    std::array<float, RouteArgs::kChosenMax> logits_{};
    std::array<std::int32_t, RouteArgs::kChosenMax> experts_{};
};

void route_row(const RouteArgs& args, std::int64_t t) {
    const float* const logits = args.logits.data + t * args.logits.stride;
    const std::int64_t E = args.logits.cols;
    const std::int64_t k = args.experts.cols;
    Chosen chosen(k);
    for (std::int64_t e = 0; e < E; ++e)
        chosen.offer(static_cast<std::int32_t>(e), order_of(logits[e]));
    const float max = order_of(logits[chosen.expert(0)]);
    float sum = 0.f;
    if (args.norm == RouterNorm::kAll || !std::isfinite(max)) {
        for (std::int64_t e = 0; e < E; ++e) sum += std::exp(logits[e] - max);
    } else {
        for (std::int64_t j = 0; j < k; ++j) sum += std::exp(logits[chosen.expert(j)] - max);
        // A NaN is chosen only if there are fewer than k numbers.
        for (std::int64_t e = 0; e < E; ++e) {
            if (std::isnan(logits[e])) sum = logits[e];
        }
    }
    for (std::int64_t j = 0; j < k; ++j) {
        const std::int32_t expert = chosen.expert(j);
        args.experts.data[t * args.experts.stride + j] = expert;
        args.weights.data[t * args.weights.stride + j] =
            as_weight(std::exp(logits[expert] - max) / sum, args.rounds_weights);
    }
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
