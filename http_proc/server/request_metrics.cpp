#include "http_proc/server/request_metrics.h"

#include <algorithm>

namespace pitstop::http {
namespace {

// The bounds that both engines' dashboards expect, in seconds, from a millisecond up.
constexpr std::array kFirstTokenBounds{0.001, 0.005, 0.01, 0.02, 0.04, 0.06,  0.08,
                                       0.1,   0.25,  0.5,  0.75, 1.0,  2.5,   5.0,
                                       7.5,   10.0,  20.0, 40.0, 80.0, 160.0, 640.0};
constexpr std::array kBetweenBounds{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                    0.075,  0.1,   0.15,   0.2,   0.3,  0.4,   0.5,
                                    0.75,   1.0,   2.5,    5.0,   10.0, 40.0};
constexpr std::array kWholeBounds{0.01, 0.05, 0.1,   0.3,   0.5,   0.8,   1.0,    1.5,
                                  2.0,  2.5,  5.0,   10.0,  15.0,  20.0,  30.0,   40.0,
                                  50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
constexpr std::array kQueueBounds{
    0.0,
    0.001,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
    120.0,
    300.0,
    1920.0};
constexpr std::array kTokenBounds{
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1000.0,
    2000.0,
    5000.0,
    10000.0,
    20000.0,
    50000.0,
    100000.0};

}  // namespace

void Histogram::add(double value, std::int64_t times) {
    const auto bound = std::ranges::lower_bound(bounds_, value);
    counts_[static_cast<std::size_t>(bound - bounds_.begin())] += times;
    sum_ += value * static_cast<double>(times);
}

std::int64_t Histogram::count_up_to(std::size_t i) const {
    std::int64_t count = 0;
    for (std::size_t k = 0; k <= i; ++k) count += counts_[k];
    return count;
}

std::int64_t Histogram::count_since(const Histogram& before) const {
    return count_up_to(bounds_.size()) - before.count_up_to(bounds_.size());
}

std::optional<double> Histogram::quantile_since(const Histogram& before, double part) const {
    const std::int64_t num = count_since(before);
    if (num <= 0) return std::nullopt;
    const double rank = part * static_cast<double>(num);
    double below = 0;
    for (std::size_t i = 0; i < bounds_.size(); ++i) {
        const auto here = static_cast<double>(counts_[i] - before.counts_[i]);
        if (here > 0 && below + here >= rank) {
            const double low = i == 0 ? 0.0 : bounds_[i - 1];
            return low + (bounds_[i] - low) * (rank - below) / here;
        }
        below += here;
    }
    return bounds_.back();
}

RequestMetrics::RequestMetrics()
    : first_token(kFirstTokenBounds),
      between_tokens(kBetweenBounds),
      whole_request(kWholeBounds),
      queue(kQueueBounds),
      prefill(kFirstTokenBounds),
      inference(kWholeBounds),
      decode(kWholeBounds),
      per_output_token(kBetweenBounds),
      prompt_tokens(kTokenBounds),
      output_tokens(kTokenBounds) {}

void RequestClock::chunk(
    const messages::OutputChunk& chunk, TimePoint now, RequestMetrics& metrics
) {
    const auto num_new = static_cast<std::int64_t>(chunk.tokens.size());
    if (num_new > 0 && is_streamed_) {
        if (num_tokens_ == 0) {
            metrics.first_token.add(seconds(now - start_));
            first_token_ = now;
        } else {
            // Tokens that arrived together share the time since the token before them.
            const double each = seconds(now - last_token_) / static_cast<double>(num_new);
            metrics.between_tokens.add(each, num_new);
        }
        last_token_ = now;
    }
    num_tokens_ += num_new;
    if (!chunk.finish || chunk.finish->reason == messages::FinishReason::kError) return;
    metrics.whole_request.add(seconds(now - start_));
    if (is_streamed_ && num_tokens_ > 0) {
        const double decode = seconds(last_token_ - first_token_);
        metrics.decode.add(decode);
        if (num_tokens_ > 1)
            metrics.per_output_token.add(decode / static_cast<double>(num_tokens_ - 1));
    }
    metrics.output_tokens.add(static_cast<double>(num_tokens_));
    if (!chunk.counts) return;
    const messages::RequestCounts& counts = *chunk.counts;
    metrics.prompt_tokens.add(static_cast<double>(counts.prompt_tokens));
    if (counts.completion_tokens == 0) return;  // the request never ran, or was only scored
    constexpr double kSecond = 1e6;
    metrics.queue.add(static_cast<double>(counts.queue_us) / kSecond);
    metrics.prefill.add(static_cast<double>(counts.prefill_us) / kSecond);
    metrics.inference.add(static_cast<double>(counts.prefill_us + counts.decode_us) / kSecond);
}

}  // namespace pitstop::http
