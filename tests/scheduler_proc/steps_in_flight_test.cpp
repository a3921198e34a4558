// The steps in flight alone: whose answers count, and when a step is done.
#include "scheduler_proc/steps_in_flight.h"

#include <gtest/gtest.h>

namespace pitstop::scheduler {
namespace {

using std::chrono::seconds;

constexpr TimePoint kStart{seconds(100)};
constexpr std::int64_t kEpoch = 7;
constexpr RequestKey kKey{4};

class StepsInFlightTest : public testing::Test {
  protected:
    // A step with one row, which samples.
    void push(TimePoint sent_at = kStart) {
        InFlightStep step{
            .step = steps.next_step(), .version = {.epoch = Epoch{kEpoch}}, .sent_at = sent_at};
        step.rows.push_back({.key = kKey, .samples = true});
        steps.push(std::move(step));
    }

    static messages::StepResult result_of(int step, int rank, int token = 9) {
        messages::StepResult result{
            .step = StepId{step}, .epoch = Epoch{kEpoch}, .rank = static_cast<Rank>(rank)};
        if (rank == 0) {
            result.sampled.values = {static_cast<TokenId>(token)};
            result.logprobs.values = {-1.0F};
            result.ranks.values = {1};
        }
        return result;
    }

    bool record(int step, int rank) {
        const Result<bool> counts = steps.record(result_of(step, rank));
        EXPECT_TRUE(counts) << counts.error().message;
        return counts && *counts;
    }

    StepsInFlight steps{2, seconds(30)};
};

TEST_F(StepsInFlightTest, AStepIsDoneWhenEachRankHasAnsweredAndStepsAreDoneInTheOrderSent) {
    push();
    push();
    EXPECT_TRUE(steps.is_full());
    EXPECT_TRUE(record(2, 0));
    EXPECT_TRUE(record(2, 1));
    EXPECT_FALSE(steps.take_done()) << "it has an elder";
    EXPECT_TRUE(record(1, 1));
    EXPECT_FALSE(steps.take_done()) << "rank 0 has the numbers";
    EXPECT_TRUE(record(1, 0));
    const auto first = steps.take_done();
    ASSERT_TRUE(first);
    EXPECT_EQ(first->step, StepId{1});
    EXPECT_EQ(first->numbers.sampled.values, std::vector{TokenId{9}});
    const auto second = steps.take_done();
    ASSERT_TRUE(second);
    EXPECT_EQ(second->step, StepId{2});
    EXPECT_FALSE(steps.take_done());
    EXPECT_TRUE(steps.empty());
    EXPECT_EQ(steps.next_step(), StepId{3});
}

TEST_F(StepsInFlightTest, AResultCountsOnceAndForAStepInFlightAlone) {
    EXPECT_FALSE(record(1, 0)) << "nothing was sent";
    push();
    EXPECT_FALSE(record(0, 0));
    EXPECT_FALSE(record(2, 0));
    EXPECT_FALSE(record(1, -1));
    EXPECT_FALSE(record(1, 2));
    EXPECT_TRUE(record(1, 0));
    EXPECT_TRUE(steps.record(result_of(1, 0, 5))) << "heard before";
    EXPECT_FALSE(record(1, 0));
    EXPECT_TRUE(record(1, 1));
    EXPECT_EQ(steps.take_done()->numbers.sampled.values, std::vector{TokenId{9}});
    EXPECT_FALSE(record(1, 1)) << "it is over";
}

// P1: results under another version do not belong to this step.
TEST_F(StepsInFlightTest, P1_AResultThatIsNotWhatWasPlannedIsAnError) {
    push();
    messages::StepResult result = result_of(1, 1);
    result.epoch = Epoch{kEpoch - 1};
    Result<bool> counts = steps.record(result);
    ASSERT_FALSE(counts);
    EXPECT_EQ(counts.error().message, "rank 1 ran step 1 under epoch 6, planned was 7");
    result = result_of(1, 0);
    result.sampled.values.push_back(TokenId{1});
    counts = steps.record(result);
    ASSERT_FALSE(counts);
    EXPECT_EQ(counts.error().message, "rank 0's result of step 1: sampled has 2 entries, not 1");
    EXPECT_EQ(
        steps.describe(kStart), "step 1 has run for 0.000 s without an answer from rank 0, rank 1"
    );
}

TEST_F(StepsInFlightTest, P5_OnSeveralMachinesTheErrorSaysWhereAMissingRankIs) {
    steps = StepsInFlight(4, seconds(30), /*nodes=*/2);
    push();
    record(1, 0);
    record(1, 2);
    EXPECT_EQ(
        steps.describe(kStart),
        "step 1 has run for 0.000 s without an answer from rank 1 on node 0, rank 3 on node 1"
    );
}

TEST_F(StepsInFlightTest, P5_TheFirstOneIsLateAfterTheTimeoutAndSaysWhoIsMissing) {
    EXPECT_EQ(steps.describe(kStart), "no step in flight");
    EXPECT_FALSE(steps.next_deadline());
    EXPECT_FALSE(steps.began_at());
    EXPECT_FALSE(steps.is_late(kStart + seconds(1000)));
    push();
    push(kStart + seconds(10));
    record(1, 0);
    EXPECT_EQ(
        steps.describe(kStart + seconds(3)),
        "step 1 has run for 3.000 s without an answer from rank 1"
    );
    EXPECT_EQ(steps.next_deadline(), kStart + seconds(30));
    EXPECT_FALSE(steps.is_late(kStart + seconds(30) - Duration(1)));
    EXPECT_TRUE(steps.is_late(kStart + seconds(30)));
    record(1, 1);
    EXPECT_TRUE(steps.take_done());
    EXPECT_EQ(steps.began_at(), kStart + seconds(10));
    EXPECT_FALSE(steps.is_late(kStart + seconds(30)));
}

TEST_F(StepsInFlightTest, TheTokensBeingSampledAreCountedByRequest) {
    EXPECT_TRUE(steps.num_sampled().empty());
    push();
    push();
    EXPECT_EQ(steps.num_sampled(), (std::map<RequestKey, std::int64_t>{{kKey, 2}}));
    record(1, 0);
    record(1, 1);
    EXPECT_TRUE(steps.take_done());
    EXPECT_EQ(steps.num_sampled().at(kKey), 1);
}

TEST_F(StepsInFlightTest, TheAuditFindsAStepOfAVersionToCome) {
    push();
    push();
    EXPECT_EQ(steps.audit(Epoch{kEpoch}).value_or(""), "");
    EXPECT_EQ(steps.audit(Epoch{kEpoch - 1}), "step 1 runs under a future version");
}

}  // namespace
}  // namespace pitstop::scheduler
