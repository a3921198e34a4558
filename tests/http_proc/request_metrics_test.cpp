// Tests the durations of requests, from their chunks and a clock.
#include "http_proc/server/request_metrics.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>

namespace pitstop::http {
namespace {

using std::chrono::milliseconds;

std::int64_t count(const Histogram& histogram) {
    return histogram.count_up_to(histogram.bounds().size());
}

messages::OutputChunk chunk(
    std::size_t num_tokens, std::optional<messages::FinishReason> reason = std::nullopt
) {
    messages::OutputChunk next;
    next.tokens.resize(num_tokens);
    if (!reason) return next;
    next.finish = messages::Finish{.reason = *reason};
    next.counts = messages::RequestCounts{.prompt_tokens = 7};
    return next;
}

TEST(Histogram, CountsValuesUpToEachBoundAndAboveTheLast) {
    constexpr std::array kBounds{1.0, 2.0, 5.0};
    Histogram histogram(kBounds);
    histogram.add(1.0);  // at most 1
    histogram.add(1.5, 3);
    histogram.add(100);
    EXPECT_EQ(histogram.count_up_to(0), 1);
    EXPECT_EQ(histogram.count_up_to(1), 4);
    EXPECT_EQ(histogram.count_up_to(2), 4);
    EXPECT_EQ(histogram.count_up_to(3), 5);
    EXPECT_DOUBLE_EQ(histogram.sum(), 1.0 + 4.5 + 100);
}

TEST(Histogram, QuantilesAreOfWhatCameSince) {
    constexpr std::array kBounds{1.0, 2.0, 4.0};
    Histogram histogram(kBounds);
    histogram.add(0.5, 1000);
    const Histogram before = histogram;
    EXPECT_EQ(histogram.quantile_since(before, 0.5), std::nullopt);
    histogram.add(1.5, 4);  // between 1 and 2
    histogram.add(3.0, 4);  // between 2 and 4
    EXPECT_EQ(histogram.count_since(before), 8);
    EXPECT_DOUBLE_EQ(histogram.quantile_since(before, 0.25).value(), 1.5);
    EXPECT_DOUBLE_EQ(histogram.quantile_since(before, 0.5).value(), 2.0);
    EXPECT_DOUBLE_EQ(histogram.quantile_since(before, 0.75).value(), 3.0);
    EXPECT_DOUBLE_EQ(histogram.quantile_since(before, 1.0).value(), 4.0);
    histogram.add(100, 8);  // above all bounds: the quantile is the last bound
    EXPECT_DOUBLE_EQ(histogram.quantile_since(before, 0.9).value(), 4.0);
}

TEST(RequestClock, TimesAStreamsFirstTokenTheOthersAndTheWhole) {
    RequestMetrics metrics;
    const TimePoint start{};
    RequestClock clock(start, /*is_streamed=*/true);
    clock.chunk(chunk(0), start + milliseconds(1), metrics);  // no token yet
    EXPECT_EQ(count(metrics.first_token), 0);
    clock.chunk(chunk(2), start + milliseconds(30), metrics);
    EXPECT_DOUBLE_EQ(metrics.first_token.sum(), 0.030);
    EXPECT_EQ(count(metrics.between_tokens), 0);
    // Tokens that arrive together share the time since the last token.
    clock.chunk(chunk(4), start + milliseconds(50), metrics);
    EXPECT_EQ(count(metrics.between_tokens), 4);
    EXPECT_DOUBLE_EQ(metrics.between_tokens.sum(), 0.020);
    EXPECT_EQ(count(metrics.whole_request), 0);
    clock.chunk(chunk(0, messages::FinishReason::kStop), start + milliseconds(60), metrics);
    EXPECT_EQ(count(metrics.first_token), 1);
    EXPECT_DOUBLE_EQ(metrics.whole_request.sum(), 0.060);
    EXPECT_DOUBLE_EQ(metrics.output_tokens.sum(), 6);
    EXPECT_DOUBLE_EQ(metrics.prompt_tokens.sum(), 7);
}

TEST(RequestClock, OfAWholeAnswerOnlyTheEndIsSeen) {
    RequestMetrics metrics;
    RequestClock clock(TimePoint{}, /*is_streamed=*/false);
    clock.chunk(chunk(5, messages::FinishReason::kLength), TimePoint{} + milliseconds(10), metrics);
    EXPECT_EQ(count(metrics.first_token) + count(metrics.between_tokens), 0);
    EXPECT_EQ(count(metrics.whole_request), 1);
    EXPECT_DOUBLE_EQ(metrics.output_tokens.sum(), 5);
}

TEST(RequestClock, TheSchedulersTimesAreOfRequestsThatHaveOutput) {
    RequestMetrics metrics;
    for (const std::int64_t num_tokens : {0, 3}) {
        messages::OutputChunk last = chunk(0, messages::FinishReason::kAbort);
        last.counts->completion_tokens = num_tokens;
        last.counts->queue_us = 1'500'000;
        last.counts->prefill_us = 250'000;
        last.counts->decode_us = 500'000;
        RequestClock clock(TimePoint{}, /*is_streamed=*/false);
        clock.chunk(last, TimePoint{} + milliseconds(10), metrics);
    }
    EXPECT_EQ(count(metrics.queue), 1);
    EXPECT_DOUBLE_EQ(metrics.queue.sum(), 1.5);
    EXPECT_DOUBLE_EQ(metrics.prefill.sum(), 0.25);
    EXPECT_DOUBLE_EQ(metrics.inference.sum(), 0.75);
}

TEST(RequestClock, AnAbortIsARequestAnErrorIsNone) {
    RequestMetrics metrics;
    for (const messages::FinishReason reason :
         {messages::FinishReason::kAbort, messages::FinishReason::kError}) {
        RequestClock clock(TimePoint{}, /*is_streamed=*/true);
        clock.chunk(chunk(0, reason), TimePoint{} + milliseconds(10), metrics);
    }
    EXPECT_EQ(count(metrics.whole_request), 1);
}

}  // namespace
}  // namespace pitstop::http
