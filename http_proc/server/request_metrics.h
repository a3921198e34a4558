// Measures how long requests of this front end took: histograms for /metrics.
//
// Thread: the server's loop.
#pragma once

#include "base/time.h"
#include "messages/generation.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pitstop::http {

// Counts, as a Prometheus histogram, how many values were at most each bound.
class Histogram {
  public:
    // `bounds` ascend; they outlive the histogram.
    explicit Histogram(std::span<const double> bounds)
        : bounds_(bounds), counts_(bounds.size() + 1) {}

    void add(double value, std::int64_t times = 1);

    [[nodiscard]] std::span<const double> bounds() const { return bounds_; }
    // Counts the values that are at most bounds()[i]; the last counts all.
    [[nodiscard]] std::int64_t count_up_to(std::size_t i) const;
    [[nodiscard]] double sum() const { return sum_; }

  private:
    std::span<const double> bounds_;
    std::vector<std::int64_t> counts_;  // by the first bound that is not below; one more: none
    double sum_ = 0;
};

struct RequestMetrics {
    RequestMetrics();

    // These count seconds. The first two are of streamed requests: of others only the end is seen.
    Histogram first_token;
    Histogram between_tokens;
    Histogram whole_request;
    // These are as the scheduler measured them, of requests that ran: until it was first admitted,
    // from there to its first token, and to its last.
    Histogram queue;
    Histogram prefill;
    Histogram inference;
    // These are likewise of streamed requests: from the first token to the last, and that by each
    // after it.
    Histogram decode;
    Histogram per_output_token;
    // These count tokens.
    Histogram prompt_tokens;
    Histogram output_tokens;
};

// Times one request.
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
