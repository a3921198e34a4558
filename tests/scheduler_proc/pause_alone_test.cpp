// The pause alone: when each call is answered, and what a refusal leaves unchanged.
#include "scheduler_proc/pause.h"

#include <gtest/gtest.h>

namespace pitstop::scheduler {
namespace {

using std::chrono::seconds;

constexpr TimePoint kStart{seconds(100)};
const Error kReason{ErrorCode::kFailedPrecondition, "the weights are torn"};
const Pause::Load kStill{.is_still = true};

messages::PauseGeneration call_of(std::uint64_t id, messages::PauseMode mode) {
    return {.call = CallId{id}, .mode = mode};
}

template <class Part>
std::vector<Part> parts_of(const TurnOutput& out) {
    std::vector<Part> parts;
    for (const ToTokenizer& message : out.tokenizer) {
        if (const auto* part = std::get_if<Part>(&message)) parts.push_back(*part);
    }
    return parts;
}

TEST(PauseAlone, AllWhoWaitAreAnsweredAtOnceInTheOrderOfTheirCalls) {
    Pause pause(ReplicaId{3});
    TurnOutput out;
    pause.begin(call_of(1, messages::PauseMode::kInPlace), kStart, out);
    pause.begin(call_of(2, messages::PauseMode::kRetract), kStart, out);
    EXPECT_FALSE(pause.advance({.is_still = false, .is_run_out = true}, kStart, out));
    EXPECT_TRUE(out.tokenizer.empty()) << "a step is in flight";
    EXPECT_TRUE(pause.advance(kStill, kStart + seconds(2), out));
    const auto parts = parts_of<messages::PausePart>(out);
    ASSERT_EQ(parts.size(), 2u);
    EXPECT_EQ(parts[0].call, CallId{1});
    EXPECT_EQ(parts[1].call, CallId{2});
    EXPECT_EQ(parts[1].replica, ReplicaId{3});
    EXPECT_FALSE(pause.advance(kStill, kStart + seconds(3), out)) << "it stands already";
    EXPECT_EQ(out.tokenizer.size(), 2u) << "nobody is answered twice";
}

// P4: frozen requests stay frozen, whatever later calls ask.
TEST(PauseAlone, P4_AWaitUnderAStandingPauseIsAnsweredAtOnceAndStartsNothing) {
    Pause pause(ReplicaId{0});
    TurnOutput out;
    pause.begin(call_of(1, messages::PauseMode::kInPlace), kStart, out);
    pause.advance(kStill, kStart, out);
    pause.begin(call_of(2, messages::PauseMode::kWait), kStart, out);
    EXPECT_FALSE(pause.runs_out());
    EXPECT_EQ(pause.mode(), messages::PauseMode::kInPlace);
    EXPECT_FALSE(pause.advance({.is_still = true, .num_running = 4}, kStart, out));
    const auto parts = parts_of<messages::PausePart>(out);
    ASSERT_EQ(parts.size(), 2u);
    EXPECT_TRUE(parts[1].verdict.is_done());
    EXPECT_EQ(parts[1].num_frozen, 4);
}

TEST(PauseAlone, ARefusedCallChangesNothingOfThePause) {
    Pause pause(ReplicaId{0});
    TurnOutput out;
    messages::PauseGeneration call = call_of(1, messages::PauseMode::kWait);
    call.max_pause_s = 5;
    for (std::size_t i = 0; i < kPendingCallsMax; ++i)
        ASSERT_NE(pause.begin(call, kStart, out), nullptr);
    call = call_of(2, messages::PauseMode::kRetract);
    EXPECT_EQ(pause.begin(call, kStart, out), nullptr);
    EXPECT_EQ(parts_of<messages::PausePart>(out).at(0).verdict.code, ErrorCode::kResourceExhausted);
    EXPECT_EQ(pause.mode(), messages::PauseMode::kWait);
    EXPECT_TRUE(pause.is_overdue(kStart + seconds(5))) << "it still ends by itself";
}

TEST(PauseAlone, AnOverduePauseThatMayNotEndWakesNobody) {
    Pause pause(ReplicaId{0});
    TurnOutput out;
    messages::PauseGeneration call = call_of(1, messages::PauseMode::kInPlace);
    call.max_pause_s = 5;
    pause.begin(call, kStart, out);
    pause.advance(kStill, kStart, out);
    const TimePoint end = kStart + seconds(5);
    EXPECT_EQ(pause.next_deadline(kStart, /*can_go_on=*/false), end);
    pause.end_if_overdue(end, kReason, out);
    EXPECT_TRUE(pause.is_paused());
    EXPECT_EQ(pause.next_deadline(end, /*can_go_on=*/false), std::nullopt) << "else it would spin";
    EXPECT_EQ(pause.next_deadline(end, /*can_go_on=*/true), end);
    pause.end_if_overdue(end, std::nullopt, out);
    EXPECT_FALSE(pause.is_paused());
}

TEST(PauseAlone, ACallThatIsLateIsNotAnsweredAgainWhenItStands) {
    Pause pause(ReplicaId{0});
    TurnOutput out;
    messages::PauseGeneration call = call_of(1, messages::PauseMode::kAbort);
    call.timeout_ms = 1000;
    pause.begin(call, kStart, out);
    call.call = CallId{2};
    call.timeout_ms = 3000;
    pause.begin(call, kStart, out);
    EXPECT_EQ(pause.next_deadline(kStart, /*can_go_on=*/true), kStart + seconds(1));
    pause.end_late_calls(kStart + seconds(1), "step 9", 2, out);
    pause.advance(kStill, kStart + seconds(2), out);
    const auto parts = parts_of<messages::PausePart>(out);
    ASSERT_EQ(parts.size(), 2u);
    EXPECT_EQ(parts[0].verdict.code, ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(parts[1].call, CallId{2});
    EXPECT_TRUE(parts[1].verdict.is_done());
}

}  // namespace
}  // namespace pitstop::scheduler
