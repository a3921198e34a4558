#include "bench/streams.h"

#include <gtest/gtest.h>

#include <vector>

namespace pitstop::bench {
namespace {

constexpr std::int64_t kMs = 1'000'000;  // nanoseconds

TEST(SplitGaps, AGapBelongsToTheWindowItOverlaps) {
    const std::vector<ChunkEvent> chunks{
        {0 * kMs, 0, 1},
        {10 * kMs, 0, 1},  // outside: ends as the window begins
        {12 * kMs, 1, 1},  // the first of another request: no gap
        {25 * kMs, 0, 1},  // overlaps
        {33 * kMs, 1, 1},  // spans the whole window
        {35 * kMs, 0, 1},  // overlaps its end
        {36 * kMs, 0, 1},  // outside
    };
    const SplitGaps gaps = split_gaps(chunks, {{.begin_ns = 10 * kMs, .end_ns = 30 * kMs}});
    EXPECT_EQ(gaps.outside_ms, (std::vector<double>{10, 1}));
    EXPECT_EQ(gaps.inside_ms, (std::vector<double>{15, 21, 10}));
}

TEST(SplitGaps, WithoutWindowsAllAreOutside) {
    const SplitGaps gaps = split_gaps({{0, 0, 1}, {5 * kMs, 0, 1}}, {});
    EXPECT_TRUE(gaps.inside_ms.empty());
    EXPECT_EQ(gaps.outside_ms, std::vector<double>{5});
}

}  // namespace
}  // namespace pitstop::bench
