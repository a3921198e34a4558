// The answers of two replicas to the orders of one update.
#include "tokenizer_proc/update_answers.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace pitstop::tokenizer {
namespace {

using messages::UpdateOrder;
using Progress = messages::UpdateRound::Progress;

class UpdateAnswersTest : public testing::Test {
  protected:
    static messages::UpdatePart part(
        int replica, UpdateOrder order, const std::string& digest = "d", bool ok = true
    ) {
        messages::UpdatePart part;
        part.replica = ReplicaId{replica};
        part.order = order;
        part.ok = ok;
        part.digest = digest;
        return part;
    }

    UpdateAnswers answers_{2};
};

TEST_F(UpdateAnswersTest, AnOrderIsDoneWhenEveryReplicaHasAnsweredItOnce) {
    answers_.ask(UpdateOrder::kStage);
    EXPECT_FALSE(answers_.awaits(part(0, UpdateOrder::kReady)));
    EXPECT_FALSE(answers_.awaits(part(2, UpdateOrder::kStage)));
    EXPECT_EQ(answers_.record(part(0, UpdateOrder::kStage)), Progress::kGoesOn);
    EXPECT_FALSE(answers_.awaits(part(0, UpdateOrder::kStage)));
    EXPECT_EQ(answers_.record(part(1, UpdateOrder::kStage)), Progress::kDone);
    EXPECT_EQ(answers_.phase(), messages::UpdatePhase::kPrepared);
}

TEST_F(UpdateAnswersTest, P2_ReplicasWithDifferentDigestsHaveAProblem) {
    answers_.ask(UpdateOrder::kStage);
    answers_.record(part(0, UpdateOrder::kStage, "d1"));
    answers_.record(part(1, UpdateOrder::kStage, "d2"));
    EXPECT_EQ(answers_.problem_of_stages()->code, ErrorCode::kDataLoss);
}

TEST_F(UpdateAnswersTest, P2_ReplicasWithDifferentConfigurationsOfAnAdapterHaveAProblem) {
    for (const bool is_same : {true, false}) {
        answers_ = UpdateAnswers(2);
        answers_.ask(UpdateOrder::kStage);
        for (const int replica : {0, 1}) {
            messages::UpdatePart staged = part(replica, UpdateOrder::kStage);
            staged.adapter_config_digest = replica == 0 || is_same ? "alpha-16" : "alpha-32";
            answers_.record(staged);
        }
        const std::optional<Error> problem = answers_.problem_of_stages();
        ASSERT_EQ(problem.has_value(), !is_same);
        if (is_same) continue;
        EXPECT_EQ(problem->code, ErrorCode::kDataLoss);
        EXPECT_NE(problem->message.find("replicas 0 and 1 read different"), std::string::npos);
        EXPECT_NE(problem->message.find("alpha-16 and alpha-32"), std::string::npos);
    }
}

TEST_F(UpdateAnswersTest, ARefusalKeepsTheCodeThatTheReplicaNamed) {
    answers_.ask(UpdateOrder::kStage);
    EXPECT_FALSE(answers_.refusal_code());
    messages::UpdatePart refusal = part(1, UpdateOrder::kStage, "", /*ok=*/false);
    refusal.verdict = Error{ErrorCode::kNotFound, "no such file"};
    EXPECT_EQ(answers_.record(refusal), Progress::kFailed);
    EXPECT_EQ(answers_.refusal_code(), ErrorCode::kNotFound);
    answers_.ask(UpdateOrder::kDrop);
    EXPECT_FALSE(answers_.refusal_code());
}

TEST_F(UpdateAnswersTest, SilentReplicasAreNamedWithTheRanksThatTheyWaitFor) {
    answers_.ask(UpdateOrder::kStage);
    EXPECT_TRUE(answers_.record_awaited({.replica = ReplicaId{1}, .ranks = {Rank{0}, Rank{2}}}));
    EXPECT_FALSE(answers_.record_awaited({.replica = ReplicaId{2}}));
    EXPECT_EQ(answers_.who_is_missing(), "replica 0 (scheduler_proc), replica 1 (rank 0, 2)");
    answers_.record(part(0, UpdateOrder::kStage));
    EXPECT_EQ(answers_.who_is_missing(), "replica 1 (rank 0, 2)");
}

TEST_F(UpdateAnswersTest, TheRankThatLacksTheMostDecidesAndBytesAreAddedUp) {
    answers_.ask(UpdateOrder::kOpen);
    EXPECT_EQ(answers_.most_missing(), nullptr);
    for (const int replica : {0, 1}) {
        messages::UpdatePart open = part(replica, UpdateOrder::kOpen);
        open.outcome.pause_s = replica;
        open.outcome.ranks = {
            {.bytes = 10, .num_missing = 1}, {.bytes = 20, .num_missing = 2 + replica}};
        answers_.record(open);
    }
    EXPECT_EQ(answers_.num_missing(), 3);
    EXPECT_EQ(answers_.bytes(), 60);
    messages::UpdateReply reply;
    answers_.add_to(reply);
    EXPECT_EQ(reply.bytes, 60);
    EXPECT_EQ(reply.seconds.pause_s, 1);
    answers_.forget_outcomes();
    EXPECT_EQ(answers_.bytes(), 0);
}

}  // namespace
}  // namespace pitstop::tokenizer
