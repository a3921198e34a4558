// The table of pause states (design section 4), line by line.
#include "tests/scheduler_proc/rig.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace pitstop::scheduler {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

messages::PauseGeneration pause_of(
    messages::PauseMode mode, double max_pause_s = 0, std::int64_t timeout_ms = 0
) {
    return {.call = CallId{1}, .timeout_ms = timeout_ms, .mode = mode, .max_pause_s = max_pause_s};
}

// Two requests that run, and one that waits for a slot.
class PauseTest : public testing::Test {
  protected:
    void SetUp() override {
        for (int i = 0; i < 3; ++i) {
            asks.push_back({.prompt = prompt_of(10, 100 + i), .max_new_tokens = 20});
            keys.push_back(rig.send(asks.back()));
        }
        rig.turn();
        for (int i = 0; i < 5; ++i) rig.step();
        ASSERT_EQ(rig.status().num_running, 2);
        ASSERT_EQ(rig.status().num_waiting, 1);
        ASSERT_EQ(rig.scheduler.num_in_flight(), 2u);
    }

    // Pauses, lets the steps in flight end, and returns the answer.
    messages::PausePart pause(messages::PauseMode mode, double max_pause_s = 0) {
        rig.control(pause_of(mode, max_pause_s));
        rig.turn();
        rig.run();
        return only<messages::PausePart>();
    }
    messages::ContinuePart go_on() {
        rig.control(messages::ContinueGeneration{.call = CallId{2}});
        rig.turn();
        return only<messages::ContinuePart>();
    }
    messages::FlushPart flush() {
        rig.control(messages::FlushCache{.call = CallId{3}});
        rig.turn();
        return only<messages::FlushPart>();
    }
    template <class Part>
    Part only() {
        auto parts = rig.take<Part>();
        EXPECT_EQ(parts.size(), 1u);
        return parts.empty() ? Part{} : parts[0];
    }
    // Every request got the tokens that it would have got without a pause.
    void expect_undisturbed() {
        for (std::size_t i = 0; i < keys.size(); ++i) {
            EXPECT_EQ(rig.of(keys[i]).tokens, rig.expected(asks[i]).tokens);
            ASSERT_TRUE(rig.of(keys[i]).finish);
            EXPECT_EQ(rig.of(keys[i]).finish->reason, messages::FinishReason::kLength);
        }
    }

    Rig rig{{}, {.running_max = 2}};
    std::vector<Ask> asks{};
    std::vector<RequestKey> keys{};
};

TEST_F(PauseTest, AnswersWhenNoStepIsInFlight) {
    rig.control(pause_of(messages::PauseMode::kInPlace));
    rig.turn();
    EXPECT_TRUE(rig.take<messages::PausePart>().empty());
    EXPECT_EQ(rig.status().state, messages::ReplicaState::kPausing);
    rig.step();
    EXPECT_TRUE(rig.take<messages::PausePart>().empty());
    rig.step();
    const messages::PausePart part = only<messages::PausePart>();
    EXPECT_EQ(part.verdict.code, std::nullopt);
    EXPECT_FALSE(part.was_paused);
    EXPECT_EQ(part.num_frozen, 2);
    EXPECT_EQ(part.num_waiting, 1);
    EXPECT_EQ(part.elapsed_us, 2000);
    EXPECT_EQ(rig.status().state, messages::ReplicaState::kPaused);
    EXPECT_FALSE(rig.step()) << "nothing runs";
}

TEST_F(PauseTest, WithNothingToDoIsAnsweredInTheSameTurn) {
    Rig idle;
    idle.control(pause_of(messages::PauseMode::kRetract));
    idle.turn();
    EXPECT_EQ(idle.take<messages::PausePart>().size(), 1u);
    idle.control(messages::ContinueGeneration{.call = CallId{2}});
    idle.turn();
    EXPECT_EQ(idle.take<messages::ContinuePart>().at(0).was_paused, true);
}

TEST_F(PauseTest, AbortReturnsEveryTokenSoFarAndFreesAll) {
    std::vector<std::vector<TokenId>> before;
    for (const RequestKey key : keys) before.push_back(rig.of(key).tokens);
    const messages::PausePart part = pause(messages::PauseMode::kAbort);
    EXPECT_EQ(part.num_aborted, 3);
    EXPECT_EQ(part.num_frozen, 0);
    EXPECT_EQ(part.num_waiting, 0);
    for (std::size_t i = 0; i < keys.size(); ++i) {
        ASSERT_TRUE(rig.of(keys[i]).finish);
        EXPECT_EQ(rig.of(keys[i]).finish->reason, messages::FinishReason::kAbort);
        EXPECT_EQ(rig.of(keys[i]).tokens, before[i]);
    }
    EXPECT_EQ(rig.status().pages_free, 64) << "KV and cache are freed";
    const Ask ask{.prompt = prompt_of(5)};
    const RequestKey later = rig.send(ask);
    rig.run();
    EXPECT_EQ(rig.of(later).num_chunks, 0) << "queued while paused";
    go_on();
    rig.run();
    EXPECT_EQ(rig.of(later).tokens, rig.expected(ask).tokens);
}

TEST_F(PauseTest, P4_InPlaceGoesOnFromTheVeryNextToken) {
    pause(messages::PauseMode::kInPlace);
    const std::int64_t run_before = rig.workers.num_tokens_run();
    const auto tokens = rig.of(keys[0]).tokens;
    EXPECT_EQ(flush().verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_EQ(rig.status().num_running, 2);
    go_on();
    rig.step();
    EXPECT_EQ(rig.workers.num_tokens_run(), run_before + 2) << "nothing is prefilled again";
    EXPECT_EQ(rig.of(keys[0]).tokens.size(), tokens.size() + 1);
    rig.run();
    expect_undisturbed();
}

TEST_F(PauseTest, P4_RetractLosesNoToken) {
    const messages::PausePart part = pause(messages::PauseMode::kRetract);
    EXPECT_EQ(part.num_retracted, 2);
    EXPECT_EQ(part.num_waiting, 3);
    EXPECT_EQ(rig.status().num_running, 0);
    const messages::FlushPart flushed = flush();
    EXPECT_EQ(flushed.verdict.code, std::nullopt);
    EXPECT_GT(flushed.pages_freed, 0);
    EXPECT_EQ(rig.status().pages_free, 64);
    go_on();
    rig.run();
    expect_undisturbed();
    EXPECT_EQ(rig.of(keys[0]).counts->retractions, 1);
    EXPECT_EQ(rig.of(keys[2]).counts->retractions, 0);
}

TEST_F(PauseTest, P4_WaitRunsRunningRequestsOutAndStartsNoNewOne) {
    rig.control(pause_of(messages::PauseMode::kWait));
    rig.turn();
    const Ask ask{.prompt = prompt_of(4, 300)};
    asks.push_back(ask);
    keys.push_back(rig.send(ask));  // arrives during the drain
    while (rig.status().num_running > 0) {
        EXPECT_EQ(rig.status().state, messages::ReplicaState::kPausing);
        EXPECT_TRUE(rig.take<messages::PausePart>().empty());
        ASSERT_TRUE(rig.step());
    }
    const messages::PausePart part = only<messages::PausePart>();
    EXPECT_EQ(part.num_frozen, 0);
    EXPECT_EQ(part.num_waiting, 2);
    EXPECT_EQ(rig.of(keys[0]).tokens.size(), 20u);
    EXPECT_EQ(rig.of(keys[2]).num_chunks, 0);
    EXPECT_FALSE(rig.step());
    go_on();
    rig.run();
    expect_undisturbed();
}

TEST_F(PauseTest, WaitAlsoRunsOutWhatWasRetractedUnderPressure) {
    Rig tight({.num_pages = 14});
    const Ask ask{.prompt = prompt_of(8, 1), .max_new_tokens = 40};
    const Ask other{.prompt = prompt_of(8, 2), .max_new_tokens = 40};
    const RequestKey elder = tight.send(ask);
    const RequestKey younger = tight.send(other);
    tight.turn();
    while (tight.status().retractions_total == 0) ASSERT_TRUE(tight.step());
    tight.control(pause_of(messages::PauseMode::kWait));
    tight.run();
    EXPECT_EQ(tight.of(elder).tokens, tight.expected(ask).tokens);
    EXPECT_EQ(tight.of(younger).tokens, tight.expected(other).tokens);
    EXPECT_EQ(tight.take<messages::PausePart>().size(), 1u);
}

TEST_F(PauseTest, TwiceIsHarmlessAndSaysSo) {
    pause(messages::PauseMode::kInPlace);
    const messages::PausePart again = pause(messages::PauseMode::kInPlace);
    EXPECT_EQ(again.verdict.code, std::nullopt);
    EXPECT_TRUE(again.was_paused);
    EXPECT_EQ(again.verdict.message, "already paused");
    EXPECT_EQ(again.num_frozen, 2);
    EXPECT_EQ(pause(messages::PauseMode::kWait).num_frozen, 2) << "a wait sets nothing going again";
    go_on();
    rig.run();
    expect_undisturbed();
}

TEST_F(PauseTest, ALaterRetractFreesWhatAnEarlierInPlaceFroze) {
    pause(messages::PauseMode::kInPlace);
    EXPECT_EQ(flush().verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_EQ(pause(messages::PauseMode::kRetract).num_retracted, 2);
    EXPECT_EQ(flush().verdict.code, std::nullopt);
    go_on();
    rig.run();
    expect_undisturbed();
}

TEST_F(PauseTest, ALaterInPlaceStopsAWaitThatStillRuns) {
    rig.control(pause_of(messages::PauseMode::kWait));
    rig.turn();
    rig.control(pause_of(messages::PauseMode::kInPlace));
    rig.run();
    const auto parts = rig.take<messages::PausePart>();
    ASSERT_EQ(parts.size(), 2u);
    EXPECT_EQ(parts[0].num_frozen, 2);
    EXPECT_NE(parts[0].verdict.message.find("did not wait"), std::string::npos);
    go_on();
    rig.run();
    expect_undisturbed();
}

TEST_F(PauseTest, ContinueWhenRunningIsHarmlessAndSaysSo) {
    const messages::ContinuePart part = go_on();
    EXPECT_EQ(part.verdict.code, std::nullopt);
    EXPECT_FALSE(part.was_paused);
    EXPECT_EQ(part.verdict.message, "not paused");
    rig.run();
    expect_undisturbed();
}

TEST_F(PauseTest, ContinueEndsAPauseThatStillWaits) {
    rig.control(pause_of(messages::PauseMode::kWait));
    rig.turn();
    const messages::ContinuePart part = go_on();
    EXPECT_TRUE(part.was_paused);
    EXPECT_EQ(only<messages::PausePart>().verdict.code, ErrorCode::kAborted);
    rig.run();
    expect_undisturbed();
}

TEST_F(PauseTest, ContinueSaysHowLongItWasPaused) {
    pause(messages::PauseMode::kInPlace);
    rig.now += seconds(5);
    EXPECT_NEAR(go_on().paused_s, 5, 0.1);
}

TEST_F(PauseTest, AbortWhilePausedReturnsThePartialOutput) {
    pause(messages::PauseMode::kInPlace);
    const auto before = rig.of(keys[0]).tokens;
    rig.control(messages::EndRequests{.keys = {keys[0], keys[2]}, .message = "no longer needed"});
    rig.turn();
    for (const RequestKey key : {keys[0], keys[2]}) {
        ASSERT_TRUE(rig.of(key).finish);
        EXPECT_EQ(rig.of(key).finish->reason, messages::FinishReason::kAbort);
    }
    EXPECT_EQ(rig.of(keys[0]).tokens, before);
    go_on();
    rig.run();
    EXPECT_EQ(rig.of(keys[1]).tokens, rig.expected(asks[1]).tokens);
}

TEST_F(PauseTest, ARequestThatFinishesInTheLastStepIsDoneNotFrozen) {
    while (rig.of(keys[0]).tokens.size() < 18) rig.step();
    const messages::PausePart part =
        pause(messages::PauseMode::kInPlace);  // two steps in flight: tokens 19 and 20
    EXPECT_EQ(part.num_frozen, 0);
    EXPECT_TRUE(rig.of(keys[0]).finish);
}

TEST_F(PauseTest, GoesOnByItselfAfterMaxPause) {
    rig.control(pause_of(messages::PauseMode::kInPlace, /*max_pause_s=*/2));
    const TimePoint start = rig.now;
    rig.run();
    const TurnOutput out = rig.turn();
    ASSERT_TRUE(out.wake_at);
    EXPECT_NEAR(std::chrono::duration<double>(*out.wake_at - start).count(), 2, 0.01)
        << "so the loop wakes in time";
    rig.now = *out.wake_at - milliseconds(2);
    rig.turn();
    EXPECT_TRUE(rig.scheduler.is_paused());
    rig.turn();
    EXPECT_FALSE(rig.scheduler.is_paused());
    rig.run();
    expect_undisturbed();
}

TEST_F(PauseTest, TheLatestPauseDecidesHowLong) {
    pause(messages::PauseMode::kInPlace, 2);
    pause(messages::PauseMode::kInPlace, 0);
    rig.now += seconds(3600);
    rig.turn();
    EXPECT_TRUE(rig.scheduler.is_paused());
}

TEST_F(PauseTest, MaxPauseEndsAWaitTooAndSaysSo) {
    rig.control(pause_of(messages::PauseMode::kWait, 2));
    rig.turn();
    rig.now += seconds(3);
    rig.turn();
    EXPECT_EQ(only<messages::PausePart>().verdict.code, ErrorCode::kAborted);
    rig.run();
    expect_undisturbed();
}

TEST_F(PauseTest, P5_PastItsDeadlineNamesTheStepAndTheRankAndStaysPaused) {
    rig.control(pause_of(messages::PauseMode::kInPlace, 0, /*timeout_ms=*/500));
    const TurnOutput out = rig.turn();
    ASSERT_TRUE(out.wake_at);
    rig.now = *out.wake_at;
    rig.turn();
    const messages::PausePart part = only<messages::PausePart>();
    EXPECT_EQ(part.verdict.code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(part.verdict.message.find("phase pause"), std::string::npos);
    EXPECT_NE(part.verdict.message.find("rank 0"), std::string::npos);
    EXPECT_EQ(rig.status().state, messages::ReplicaState::kPausing);
    rig.run();
    EXPECT_EQ(rig.status().state, messages::ReplicaState::kPaused);
    go_on();
    rig.run();
    expect_undisturbed();
}

TEST_F(PauseTest, PendingCallsAreBounded) {
    for (std::size_t i = 0; i < kPendingCallsMax; ++i)
        rig.control(pause_of(messages::PauseMode::kInPlace));
    rig.turn();
    EXPECT_TRUE(rig.take<messages::PausePart>().empty());
    rig.control(pause_of(messages::PauseMode::kInPlace));
    rig.turn();
    EXPECT_EQ(only<messages::PausePart>().verdict.code, ErrorCode::kResourceExhausted);
    rig.run();
    EXPECT_EQ(rig.take<messages::PausePart>().size(), kPendingCallsMax);
}

TEST_F(PauseTest, FlushIsRefusedWhileRequestsRun) {
    const messages::FlushPart part = flush();
    EXPECT_EQ(part.verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_NE(part.verdict.message.find("2 requests hold"), std::string::npos);
    rig.run();
    EXPECT_GT(rig.status().pages_cached, 0);
    const messages::FlushPart idle = flush();
    EXPECT_EQ(idle.verdict.code, std::nullopt);
    EXPECT_GT(idle.pages_freed, 0);
    EXPECT_EQ(rig.status().pages_free, 64);
}

TEST_F(PauseTest, AFlushThatResetsRunningRequestsIsOneOrderAndTheyGoOn) {
    rig.control(messages::FlushCache{.call = CallId{3}, .reset_running = true});
    rig.run();
    const messages::FlushPart part = only<messages::FlushPart>();
    EXPECT_EQ(part.verdict.code, std::nullopt) << part.verdict.message;
    EXPECT_GT(part.pages_freed, 0);
    EXPECT_EQ(rig.status().retractions_total, 2);
    EXPECT_EQ(rig.status().pauses_total, 0);
    expect_undisturbed();
}

TEST_F(PauseTest, AFlushThatResetsRunningRequestsLeavesAnothersPause) {
    rig.control(messages::PauseGeneration{.call = CallId{2}, .mode = messages::PauseMode::kInPlace}
    );
    rig.run();
    rig.control(messages::FlushCache{.call = CallId{3}, .reset_running = true});
    rig.run();
    EXPECT_EQ(only<messages::FlushPart>().verdict.code, std::nullopt);
    EXPECT_EQ(rig.status().pause_mode, "in_place");
    EXPECT_EQ(rig.status().pages_free, 64);
    rig.control(messages::ContinueGeneration{.call = CallId{4}});
    rig.run();
    expect_undisturbed();
}

TEST_F(PauseTest, FlushCanWaitUntilNobodyHoldsPages) {
    rig.control(messages::FlushCache{.call = CallId{3}, .wait_idle = true});
    rig.run();
    const messages::FlushPart part = only<messages::FlushPart>();
    EXPECT_EQ(part.verdict.code, std::nullopt);
    EXPECT_GT(part.pages_freed, 0);
    expect_undisturbed();
}

TEST_F(PauseTest, P5_AFlushThatWaitsHasADeadline) {
    rig.control(messages::FlushCache{.call = CallId{3}, .timeout_ms = 100, .wait_idle = true});
    rig.turn();
    rig.now += seconds(1);
    rig.turn();
    const messages::FlushPart part = only<messages::FlushPart>();
    EXPECT_EQ(part.verdict.code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(part.verdict.message.find("2 requests hold"), std::string::npos);
    rig.run();
}

TEST_F(PauseTest, AFlushRightAfterEverythingEndedWaitsForTheStepsInFlight) {
    rig.control(messages::EndRequests{.keys = keys});
    rig.control(messages::FlushCache{.call = CallId{3}});
    const Ask ask{.prompt = prompt_of(4, 300)};
    const RequestKey key = rig.send(ask);
    rig.turn();
    EXPECT_TRUE(rig.take<messages::FlushPart>().empty());
    rig.step();
    rig.step();
    EXPECT_EQ(only<messages::FlushPart>().verdict.code, std::nullopt) << "no newcomer holds it up";
    rig.run();
    EXPECT_EQ(rig.of(key).tokens, rig.expected(ask).tokens);
}

}  // namespace
}  // namespace pitstop::scheduler
