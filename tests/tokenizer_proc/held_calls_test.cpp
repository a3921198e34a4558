// Calls that wait for an update: their order, bounds and deadlines.
#include "tokenizer_proc/held_calls.h"

#include <gtest/gtest.h>

namespace pitstop::tokenizer {
namespace {

using namespace std::chrono_literals;

const TimePoint kNow = TimePoint{} + 1h;

HeldCall call(std::uint64_t number, bool brings_weights, std::size_t bytes = 100) {
    return {
        .caller = {"peer", CallId{number}},
        .what = brings_weights ? "update_weights" : "continue_generation",
        .deadline = kNow + std::chrono::seconds(static_cast<std::int64_t>(number)),
        .brings_weights = brings_weights,
        .bytes = bytes};
}

TEST(HeldCalls, KeepTheOrderOfArrival) {
    HeldCalls calls;
    EXPECT_TRUE(calls.is_empty());
    EXPECT_EQ(calls.next_deadline(), TimePoint::max());
    ASSERT_TRUE(calls.add(call(3, false)));
    EXPECT_FALSE(calls.is_any_with_weights());
    ASSERT_TRUE(calls.add(call(1, true)));
    EXPECT_TRUE(calls.is_any_with_weights());
    EXPECT_EQ(calls.first().caller.call, CallId{3});
    EXPECT_EQ(calls.next_deadline(), kNow + 1s);
    EXPECT_EQ(calls.take_first().caller.call, CallId{3});
    EXPECT_EQ(calls.take_first().caller.call, CallId{1});
    EXPECT_TRUE(calls.is_empty());
}

TEST(HeldCalls, P5_ACallWithWeightsIsLateAtItsDeadlineAndAContinueAfterTheGrace) {
    HeldCalls calls;
    ASSERT_TRUE(calls.add(call(5, false)));
    ASSERT_TRUE(calls.add(call(5, true)));
    EXPECT_TRUE(calls.take_late(kNow + 5s - 1ns).empty());
    const std::vector<HeldCall> first = calls.take_late(kNow + 5s);
    ASSERT_EQ(first.size(), 1U);
    EXPECT_TRUE(first.front().brings_weights);
    EXPECT_EQ(calls.next_deadline(), kNow + 5s + HeldCall::kGrace);
    EXPECT_EQ(calls.take_late(kNow + 5s + HeldCall::kGrace).size(), 1U);
    EXPECT_TRUE(calls.is_empty());
}

TEST(HeldCalls, HaveABoundOfCallsAndOfBytes) {
    HeldCalls calls;
    ASSERT_TRUE(calls.add(call(1, true, HeldCalls::kBytesMax + 1))) << "one call may have any size";
    const Result<> more = calls.add(call(2, true, 1));
    ASSERT_FALSE(more);
    EXPECT_EQ(more.error().code, ErrorCode::kResourceExhausted);
    EXPECT_EQ(calls.take_all().size(), 1U);
    for (std::size_t i = 0; i < kCallsMax; ++i) ASSERT_TRUE(calls.add(call(1, false, 1)));
    const Result<> one_more = calls.add(call(1, false, 1));
    ASSERT_FALSE(one_more);
    EXPECT_EQ(one_more.error().code, ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace pitstop::tokenizer
