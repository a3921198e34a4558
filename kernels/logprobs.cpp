#include "kernels/logprobs.h"

#include "kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace pitstop::kernels {
SoftmaxStats merge(const SoftmaxStats& a, const SoftmaxStats& b) {
    if (b.sum == 0.0) return a;
    if (a.sum == 0.0) return b;
    const float max = std::max(a.max, b.max);
    return {
        .max = max,
        .sum = a.sum * std::exp(double{a.max} - double{max}) +
               b.sum * std::exp(double{b.max} - double{max}),
    };
}

float logprob(float x, float kept_min, const SoftmaxStats& stats) {
    if (!(x >= kept_min) || x == kNegInf) return kNegInf;
    return static_cast<float>(double{x} - double{stats.max} - std::log(stats.sum));
}

void check(const SoftmaxStatsArgs& args) {
    CHECK(is_valid(args.logits));
    CHECK(args.logits.rows == 0 || (args.rows != nullptr && args.stats != nullptr));
}

void softmax_stats_ref(const SoftmaxStatsArgs& args) {
    check(args);
    for (std::int64_t r = 0; r < args.logits.rows; ++r) {
        const float* const logits = args.logits.data + r * args.logits.stride;
        const float inverse = 1.f / args.rows[r].temperature;
        // x is computed as an fp32 product: kept_min was compared with such a product when the id
        // was chosen.
        const auto is_kept = [&](float x) { return x >= args.rows[r].kept_min && x != kNegInf; };
        SoftmaxStats stats;
        for (std::int64_t i = 0; i < args.logits.cols; ++i) {
            const float x = logits[i] * inverse;
            if (is_kept(x)) stats.max = std::max(stats.max, x);
        }
        for (std::int64_t i = 0; i < args.logits.cols; ++i) {
            const float x = logits[i] * inverse;
            if (is_kept(x)) stats.sum += std::exp(double{x} - double{stats.max});
        }
        args.stats[r] = stats;
    }
}

std::int64_t softmax_stats_workspace_bytes(std::int64_t num_rows, std::int64_t vocab_len) {
    const std::int64_t num_blocks =
        (vocab_len + SoftmaxStatsArgs::kVocabBlock - 1) / SoftmaxStatsArgs::kVocabBlock;
    return num_rows * num_blocks * static_cast<std::int64_t>(sizeof(SoftmaxStats));
}

void check(const PickLogitsArgs& args) {
    CHECK(is_valid(args.logits));
    CHECK(args.num_picks == 0 || (args.picks != nullptr && args.values != nullptr));
    CHECK(args.num_picks == 0 || args.logits.data != nullptr);
}

void pick_logits_ref(const PickLogitsArgs& args) {
    check(args);
    for (std::int64_t i = 0; i < args.num_picks; ++i) {
        const LogitPick& pick = args.picks[i];
        const std::int64_t index = std::int64_t{raw(pick.id)} - args.vocab_begin;
        const bool is_here = index >= 0 && index < args.logits.cols;
        args.values[i] =
            is_here ? args.logits.data[pick.row * args.logits.stride + index] : kNegInf;
    }
}

void check(const CountBeforeArgs& args) {
    CHECK(is_valid(args.logits));
    CHECK(args.logits.cols < std::int64_t{1} << 31);  // counts are int32
    CHECK(
        args.num_picks == 0 ||
        (args.picks != nullptr && args.values != nullptr && args.counts != nullptr)
    );
}

void count_before_ref(const CountBeforeArgs& args) {
    check(args);
    for (std::int64_t i = 0; i < args.num_picks; ++i) {
        const LogitPick& pick = args.picks[i];
        const float* const logits = args.logits.data + pick.row * args.logits.stride;
        const float value = args.values[i];
        std::int32_t count = 0;
        for (std::int64_t j = 0; j < args.logits.cols; ++j) {
            const bool is_lower_id = args.vocab_begin + j < std::int64_t{raw(pick.id)};
            if (logits[j] > value || (logits[j] == value && is_lower_id)) ++count;
        }
        args.counts[i] = count;
    }
}

void check(const TopLogitsArgs& args) {
    CHECK(is_valid(args.logits));
    const std::int64_t n = args.ids.cols;
    CHECK(n >= 0 && n <= args.logits.cols && n <= TopLogitsArgs::kTopMax);
    CHECK(
        args.values.cols == n && args.values.rows == args.logits.rows &&
        args.ids.rows == args.logits.rows
    );
}

void top_logits_ref(const TopLogitsArgs& args) {
    check(args);
    std::vector<std::int64_t> order(static_cast<std::size_t>(args.logits.cols));
    for (std::int64_t r = 0; r < args.logits.rows; ++r) {
        const float* const logits = args.logits.data + r * args.logits.stride;
        const auto value = [&](std::int64_t i) {
            return std::isnan(logits[i]) ? kNegInf : logits[i];
        };
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
            return value(a) > value(b);
        });
        for (std::int64_t i = 0; i < args.ids.cols; ++i) {
            const std::int64_t index = order[static_cast<std::size_t>(i)];
            args.ids.data[r * args.ids.stride + i] = static_cast<TokenId>(args.vocab_begin + index);
            args.values.data[r * args.values.stride + i] = value(index);
        }
    }
}

}  // namespace pitstop::kernels
