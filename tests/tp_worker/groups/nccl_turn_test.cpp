// One group of a process uses NCCL at a time: which callers wait, how long, and their answers.
#include "tp_worker/groups/nccl_turn.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

using std::chrono::seconds;

class NcclTurnTest : public testing::Test {
  protected:
    Patience patient() const { return {Clock::now() + seconds(60), never_}; }
    Patience out_of_time() const { return {Clock::now(), never_}; }

    std::atomic<bool> never_{false};
    NcclTurn turn_{};
};

TEST_F(NcclTurnTest, IsGivenBackWithWhatHoldsIt) {
    {
        Result<NcclTurn::Held> first = turn_.take("a", out_of_time());
        ASSERT_TRUE(first) << first.error().message;
        const NcclTurn::Held moved = *std::move(first);  // and the moved-from turn holds nothing
        EXPECT_FALSE(turn_.try_take("b"));
    }
    EXPECT_TRUE(turn_.take("b", out_of_time()));
    EXPECT_TRUE(turn_.try_take("c"));
    EXPECT_TRUE(turn_.try_take("d"));  // each was given back at once
}

TEST_F(NcclTurnTest, P5_ACallerThatWaitsInVainIsToldForWhom) {
    const Result<NcclTurn::Held> held = turn_.take("the other", patient());
    const Result<NcclTurn::Held> late = turn_.take("mine", out_of_time());
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(
        late.error().message, "group 'mine' waited too long: NCCL was in use for group 'the other'"
    );
    EXPECT_FALSE(turn_.try_take("mine"));  // the failure changed nothing
}

TEST_F(NcclTurnTest, P5_AWaitIsCalledOff) {
    const Result<NcclTurn::Held> held = turn_.take("the other", patient());
    std::atomic<bool> is_called_off{false};
    std::future<Result<NcclTurn::Held>> waiting = std::async(std::launch::async, [&] {
        return turn_.take("mine", {Clock::now() + seconds(60), is_called_off});
    });
    is_called_off = true;
    const Result<NcclTurn::Held> taken = waiting.get();
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().code, ErrorCode::kAborted);
    EXPECT_EQ(taken.error().message, "cancelled while group 'the other' used NCCL");
}

// A step, which continues without the turn if the turn is taken, does not overtake a waiting
// caller.
TEST_F(NcclTurnTest, GoesToACallerThatWaitsBeforeOneThatDoesNot) {
    constexpr int kNumTimes = 50;
    for (int i = 0; i < kNumTimes; ++i) {
        std::optional<NcclTurn::Held> step = turn_.try_take("a step's");
        ASSERT_TRUE(step);
        std::promise<void> is_over;
        std::future<bool> waiting = std::async(std::launch::async, [&] {
            const Result<NcclTurn::Held> held = turn_.take("a trainer's", patient());
            is_over.get_future().wait();
            return held.has_value();
        });
        while (turn_.num_waiting() == 0) std::this_thread::yield();
        step.reset();
        const bool has_overtaken = turn_.try_take("the next step's").has_value();
        is_over.set_value();
        ASSERT_FALSE(has_overtaken);
        ASSERT_TRUE(waiting.get());
        ASSERT_EQ(turn_.num_waiting(), 0);
    }
}

// One caller at a time has the turn, and every caller gets it.
TEST_F(NcclTurnTest, HasOneOwnerAtATime) {
    constexpr int kNumThreads = 4;
    constexpr int kNumTimes = 50;
    std::atomic<int> num_holding{0};
    std::vector<std::future<int>> threads;
    for (int i = 0; i < kNumThreads; ++i) {
        threads.push_back(std::async(std::launch::async, [&] {
            int num_alone = 0;
            for (int k = 0; k < kNumTimes; ++k) {
                const Result<NcclTurn::Held> held = turn_.take("any", patient());
                if (!held) break;
                if (num_holding.fetch_add(1) == 0) ++num_alone;
                num_holding.fetch_sub(1);
            }
            return num_alone;
        }));
    }
    for (std::future<int>& thread : threads) EXPECT_EQ(thread.get(), kNumTimes);
}

}  // namespace
}  // namespace pitstop::tp_worker
