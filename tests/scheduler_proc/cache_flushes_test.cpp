// The flush calls alone: which wait, which requests are held meanwhile, and the answers.
#include "scheduler_proc/cache_flushes.h"

#include <gtest/gtest.h>

namespace pitstop::scheduler {
namespace {

using std::chrono::seconds;

constexpr TimePoint kStart{seconds(100)};
const Error kInUse{ErrorCode::kFailedPrecondition, "2 requests hold 5 pages"};

class CacheFlushesTest : public testing::Test {
  protected:
    enum class Waits { kForSteps, kForIdle };
    void begin(
        std::uint64_t id,
        Waits waits,
        std::optional<Error> in_use = std::nullopt,
        std::int64_t timeout_ms = 0
    ) {
        const messages::FlushCache call{
            .call = CallId{id}, .timeout_ms = timeout_ms, .wait_idle = waits == Waits::kForIdle};
        flushes.begin(call, kStart, in_use, out);
    }

    std::vector<messages::FlushPart> answers() {
        std::vector<messages::FlushPart> parts;
        for (ToTokenizer& message : out.tokenizer)
            parts.push_back(std::get<messages::FlushPart>(std::move(message)));
        out.tokenizer.clear();
        return parts;
    }

    TurnOutput out{};
    CacheFlushes flushes{ReplicaId{3}};
};

TEST_F(CacheFlushesTest, AllThatWaitAreAnsweredInTheOrderOfTheirCallsAndPagesAreCountedOnce) {
    EXPECT_TRUE(flushes.empty());
    begin(1, Waits::kForSteps);
    begin(2, Waits::kForIdle, kInUse);
    EXPECT_TRUE(answers().empty());
    EXPECT_FALSE(flushes.empty());
    flushes.advance(7, out);
    const auto parts = answers();
    ASSERT_EQ(parts.size(), 2u);
    EXPECT_EQ(parts[0].call, CallId{1});
    EXPECT_EQ(parts[0].replica, ReplicaId{3});
    EXPECT_EQ(parts[0].pages_freed, 7);
    EXPECT_EQ(parts[1].call, CallId{2});
    EXPECT_EQ(parts[1].pages_freed, 0);
    EXPECT_TRUE(parts[1].verdict.is_done());
    flushes.advance(7, out);
    EXPECT_TRUE(answers().empty()) << "nobody is answered twice";
}

TEST_F(CacheFlushesTest, ACallThatDoesNotWaitForIdleIsToldWhatHoldsPages) {
    begin(1, Waits::kForSteps, kInUse);
    const auto parts = answers();
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_EQ(parts[0].verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_EQ(parts[0].verdict.message, kInUse.message);
    EXPECT_TRUE(flushes.empty());
}

TEST_F(CacheFlushesTest, OnlyAFlushOfAnIdleCacheHoldsPlansUp) {
    begin(1, Waits::kForIdle, kInUse);
    EXPECT_FALSE(flushes.holds_plans()) << "what runs could never end";
    begin(2, Waits::kForSteps);
    EXPECT_TRUE(flushes.holds_plans());
    flushes.advance(0, out);
    EXPECT_FALSE(flushes.holds_plans());
}

TEST_F(CacheFlushesTest, P5_EachHasADeadlineAndTheFirstIsTold) {
    EXPECT_FALSE(flushes.next_deadline());
    begin(1, Waits::kForIdle, std::nullopt, 3000);
    begin(2, Waits::kForIdle, std::nullopt, 1000);
    begin(3, Waits::kForIdle);
    EXPECT_EQ(flushes.next_deadline(), kStart + seconds(1));
    flushes.end_late_calls(kStart + seconds(1) - Duration(1), "a; b", out);
    EXPECT_TRUE(answers().empty());
    flushes.end_late_calls(kStart + seconds(1), "a; b", out);
    const auto parts = answers();
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_EQ(parts[0].call, CallId{2});
    EXPECT_EQ(parts[0].verdict.code, ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(parts[0].verdict.message, "phase flush: a; b");
    EXPECT_EQ(flushes.next_deadline(), kStart + seconds(3));
    flushes.end_late_calls(kStart + kCallTimeout, "", out);
    EXPECT_EQ(answers().size(), 2u) << "a call that names no timeout has one";
    EXPECT_TRUE(flushes.empty());
}

TEST_F(CacheFlushesTest, AreBounded) {
    for (std::size_t i = 0; i < kPendingCallsMax; ++i) begin(1, Waits::kForIdle);
    EXPECT_TRUE(answers().empty());
    begin(2, Waits::kForIdle);
    const auto parts = answers();
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_EQ(parts[0].call, CallId{2});
    EXPECT_EQ(parts[0].verdict.code, ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace pitstop::scheduler
