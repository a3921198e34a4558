// Measures the durations of this front end's requests, as histograms for /metrics.
//
// Thread: the server's loop.
#pragma once

#include "base/time.h"
#include "messages/generation.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace pitstop::http {

// A Prometheus histogram: counts the values up to each bound.
class Histogram {
  public:
    // `bounds` ascend, and must outlive the histogram.
    explicit Histogram(std::span<const double> bounds)
        : bounds_(bounds), counts_(bounds.size() + 1) {}

    void add(double value, std::int64_t times = 1);

    [[nodiscard]] std::span<const double> bounds() const { return bounds_; }
    // Returns the number of values up to bounds()[i]; for i past the last bound, of all values.
    [[nodiscard]] std::int64_t count_up_to(std::size_t i) const;
    [[nodiscard]] double sum() const { return sum_; }

    // Returns a quantile of the values added since `before`, an earlier copy of this histogram;
    // `part` is 0.5 for the median. Assumes that values are spread evenly between two bounds. Above
    // the last bound, returns that bound. Returns nothing if no value was added.
    // Source: Prometheus, histogram_quantile.
    [[nodiscard]] std::optional<double> quantile_since(const Histogram& before, double part) const;
    [[nodiscard]] std::int64_t count_since(const Histogram& before) const;

  private:
    std::span<const double> bounds_;
    // [i]: values above bounds[i - 1] and up to bounds[i]; the last entry: above all bounds
    std::vector<std::int64_t> counts_;
    double sum_ = 0;
};

struct RequestMetrics {
    RequestMetrics();

    // In seconds. The first two need streamed requests: of other requests only the end is visible.
    Histogram first_token;
    Histogram between_tokens;
    Histogram whole_request;
    // In seconds, by the scheduler's clock, of requests that ran: from arrival to first admission,
    // from there to the first token, and from admission to the last token.
    Histogram queue;
    Histogram prefill;
    Histogram inference;
    // In seconds, by the scheduler's clock, of streamed requests: from the first token to the last;
    // and that time per token after the first.
    Histogram decode;
    Histogram per_output_token;
    // In tokens per request.
    Histogram prompt_tokens;
    Histogram output_tokens;
};

// Measures one request into RequestMetrics.
class RequestClock {
  public:
    RequestClock(TimePoint start, bool is_streamed) : start_(start), is_streamed_(is_streamed) {}
    void chunk(const messages::OutputChunk& chunk, TimePoint now, RequestMetrics& metrics);

  private:
    TimePoint start_;
    TimePoint first_token_{};
    TimePoint last_token_{};
    bool is_streamed_;
    std::int64_t num_tokens_ = 0;
};

}  // namespace pitstop::http
