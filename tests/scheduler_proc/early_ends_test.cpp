#include "scheduler_proc/early_ends.h"

#include <gtest/gtest.h>

namespace pitstop::scheduler {
namespace {

TEST(EarlyEnds, AnEndWaitsForItsRequest) {
    EarlyEnds ends;
    ends.add(RequestKey{5}, {messages::EndCause::kAbort, "why"});
    EXPECT_FALSE(ends.take(RequestKey{4}));
    const auto end = ends.take(RequestKey{5});
    ASSERT_TRUE(end);
    EXPECT_EQ(end->message, "why");
    EXPECT_FALSE(ends.take(RequestKey{5}));
}

TEST(EarlyEnds, KeysThatWerePassedOverAreForgotten) {
    EarlyEnds ends;
    ends.add(RequestKey{5}, {});
    ends.add(RequestKey{6}, {});
    EXPECT_FALSE(ends.take(RequestKey{7}));
    EXPECT_EQ(ends.size(), 0u);
}

TEST(EarlyEnds, AreBounded) {
    EarlyEnds ends;
    for (std::uint64_t key = 1; key <= kEarlyEndsMax + 10; ++key) ends.add(RequestKey{key}, {});
    EXPECT_EQ(ends.size(), kEarlyEndsMax);
    EXPECT_TRUE(ends.take(RequestKey{kEarlyEndsMax + 10}));
}

}  // namespace
}  // namespace pitstop::scheduler
