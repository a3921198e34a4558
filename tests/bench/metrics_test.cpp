#include "bench/metrics.h"

#include <gtest/gtest.h>

namespace pitstop::bench {
namespace {

constexpr std::int64_t kMs = 1'000'000;  // nanoseconds

TEST(Metrics, AreCountedFromDueTimesAndChunks) {
    DriveResult result;
    result.requests = {
        {.due_ns = 10 * kMs, .end_ns = 70 * kMs, .prompt_tokens = 100, .output_tokens = 4},
        {.due_ns = 20 * kMs, .end_ns = 60 * kMs, .prompt_tokens = 50, .output_tokens = 2},
    };
    result.chunks = {
        {30 * kMs, 0, 1},
        {40 * kMs, 0, 2},  // two tokens, 5 ms each
        {45 * kMs, 1, 1},
        {60 * kMs, 1, 1},  // 15 ms
        {70 * kMs, 0, 1},  // 30 ms
    };
    const Metrics metrics = metrics_of(result);
    EXPECT_DOUBLE_EQ(metrics.seconds, 0.070);
    EXPECT_EQ(metrics.num_ok, 2);
    EXPECT_EQ(metrics.prompt_tokens, 150);
    EXPECT_EQ(metrics.output_tokens, 6);
    EXPECT_EQ(metrics.first_token_ms.count, 2u);
    EXPECT_DOUBLE_EQ(metrics.first_token_ms.p50, 20);
    EXPECT_DOUBLE_EQ(metrics.first_token_ms.max, 25);
    EXPECT_EQ(metrics.gap_ms.count, 4u);
    EXPECT_DOUBLE_EQ(metrics.gap_ms.mean, (5 + 5 + 15 + 30) / 4.0);
    EXPECT_DOUBLE_EQ(metrics.gap_ms.max, 30);
    EXPECT_DOUBLE_EQ(metrics.gap_largest_ms.p50, 15);
    EXPECT_DOUBLE_EQ(metrics.request_ms.max, 60);
    // Both requests decode from 45 (the later first token) to 60 (the earlier end): one token.
    ASSERT_TRUE(metrics.decode.has_value());
    EXPECT_DOUBLE_EQ(metrics.decode->seconds, 0.015);
    EXPECT_EQ(metrics.decode->tokens, 1);
    // Two requests: 150 prompt tokens, 4 tokens before the window, half of the token in the window.
    EXPECT_DOUBLE_EQ(metrics.decode->context_mean, (150 + 4 + 0.5) / 2);
}

TEST(Metrics, AFailedRequestCountsAsItsErrorOnly) {
    DriveResult result;
    result.requests = {
        {.end_ns = 10 * kMs, .prompt_tokens = 7, .output_tokens = 1},
        {.end_ns = 90 * kMs, .prompt_tokens = 9, .output_tokens = 1, .error = "unavailable"},
    };
    result.chunks = {{10 * kMs, 0, 1}, {20 * kMs, 1, 1}};
    const Metrics metrics = metrics_of(result);
    EXPECT_EQ(metrics.num_ok, 1);
    EXPECT_EQ(metrics.errors.at("unavailable"), 1);
    EXPECT_EQ(metrics.prompt_tokens, 7);
    EXPECT_EQ(metrics.first_token_ms.count, 1u);
    EXPECT_FALSE(metrics.decode.has_value());
}

}  // namespace
}  // namespace pitstop::bench
