#include "bench/percentiles.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace pitstop::bench {
namespace {

TEST(Percentiles, NearestRankOfOneToHundred) {
    std::vector<double> values(100);
    std::iota(values.rbegin(), values.rend(), 1.0);  // descending: the order does not matter
    const Summary summary = summarize(values);
    EXPECT_EQ(summary.count, 100u);
    EXPECT_EQ(summary.p50, 50);
    EXPECT_EQ(summary.p90, 90);
    EXPECT_EQ(summary.p99, 99);
    EXPECT_EQ(summary.max, 100);
    EXPECT_DOUBLE_EQ(summary.mean, 50.5);
}

TEST(Percentiles, OneValueIsAllOfThem) {
    const Summary summary = summarize({3.5});
    EXPECT_EQ(summary.p50, 3.5);
    EXPECT_EQ(summary.p99, 3.5);
    EXPECT_EQ(summary.max, 3.5);
}

TEST(Percentiles, NoValuesAreZero) {
    EXPECT_EQ(summarize({}).count, 0u);
    EXPECT_EQ(summarize({}).max, 0);
}

TEST(Percentiles, TheP99OfFewIsTheLargest) {
    EXPECT_EQ(summarize({1, 2, 3, 4, 5}).p99, 5);
    EXPECT_EQ(summarize({1, 2, 3, 4, 5}).p50, 3);
}

}  // namespace
}  // namespace pitstop::bench
