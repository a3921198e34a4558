// A replica's answers to the door about an update, in each state of its weights.
#include "scheduler_proc/update_answers.h"

#include "tests/scheduler_proc/update_facts_fixture.h"

#include <vector>

namespace pitstop::scheduler {
namespace {

using messages::UpdateOrder;
using messages::UpdateState;
using Kind = UpdateJob::Kind;

const Error kFailure{ErrorCode::kDataLoss, "shard 2 is truncated"};

class ReplicaAnswersTest : public UpdateFactsTest {
  protected:
    void stage() {
        start(Kind::kStaged, {UpdateOrder::kStage});
        job->new_epoch = Epoch{6};
        job->label = "next";
        job->digest = "digest-2";
        job->adapter_config_digest = "alpha-16";
        job->ranks[1].bytes = 42;
    }
};

TEST_F(ReplicaAnswersTest, AStageIsAnsweredWithTheVersionThatIsPrepared) {
    stage();
    const messages::UpdatePart part = answer_to(UpdateOrder::kStage, std::nullopt, facts());
    EXPECT_TRUE(part.ok && part.verdict.is_done());
    EXPECT_EQ(part.update, kUpdate);
    EXPECT_EQ(part.replica, ReplicaId{3});
    EXPECT_EQ(part.order, UpdateOrder::kStage);
    EXPECT_EQ(part.state, UpdateState::kStaged);
    EXPECT_EQ(part.epoch, Epoch{6});
    EXPECT_EQ(part.label, "next");
    EXPECT_EQ(part.digest, "digest-2");
    EXPECT_EQ(part.adapter_config_digest, "alpha-16");
    EXPECT_EQ(part.outcome.replica, ReplicaId{3});
    ASSERT_EQ(part.outcome.ranks.size(), 2u);
    EXPECT_EQ(part.outcome.ranks[1].bytes, 42);
}

// P1: the answer to a failed stage names the version that serves, not the failed one.
TEST_F(ReplicaAnswersTest, P1_AFailureIsAnsweredWithTheVersionThatServes) {
    stage();
    job->round.fail();
    const messages::UpdatePart part = answer_to(UpdateOrder::kStage, kFailure, facts());
    EXPECT_FALSE(part.ok);
    EXPECT_EQ(part.verdict.code, ErrorCode::kDataLoss);
    EXPECT_EQ(part.verdict.message, "shard 2 is truncated");
    EXPECT_EQ(part.epoch, Epoch{5});
    EXPECT_EQ(part.label, "base");
    EXPECT_EQ(part.digest, "digest-1");
    EXPECT_EQ(part.outcome.ranks.size(), 2u) << "the report of what each rank did";
}

TEST_F(ReplicaAnswersTest, ADropSaysWhyAndAnyOtherOrderNothing) {
    stage();
    job->drop_reason = "the trainer left";
    const messages::UpdatePart drop = answer_to(UpdateOrder::kDrop, std::nullopt, facts());
    EXPECT_TRUE(drop.ok);
    EXPECT_EQ(drop.verdict.message, "the trainer left");
    EXPECT_EQ(drop.epoch, Epoch{5});
    EXPECT_EQ(answer_to(UpdateOrder::kReady, std::nullopt, facts()).verdict.message, "");
}

TEST_F(ReplicaAnswersTest, TheStateIsThatOfTheWeightsOrOfAPreparedUpdate) {
    const auto state = [&] {
        return refusal_of(kUpdate, UpdateOrder::kReady, kFailure, facts()).state;
    };
    EXPECT_EQ(state(), UpdateState::kServing);
    start(Kind::kStaged, {UpdateOrder::kOpen});
    EXPECT_EQ(state(), UpdateState::kServing) << "not every rank is prepared";
    stage();
    EXPECT_EQ(state(), UpdateState::kStaged);
    job->round.ask(UpdateOrder::kReady);
    EXPECT_EQ(state(), UpdateState::kStaged);
    start(Kind::kStaged, {UpdateOrder::kStage, UpdateOrder::kReady});
    job->round.ask(UpdateOrder::kCommit);
    EXPECT_EQ(state(), UpdateState::kServing) << "nothing is staged any more";
    job.reset();
    weights.lose();
    EXPECT_EQ(state(), UpdateState::kAwaitingWeights);
    stage();
    weights.tear();
    EXPECT_EQ(state(), UpdateState::kTorn) << "whatever is staged";
}

TEST_F(ReplicaAnswersTest, AnOrderThatIsNotCarriedOutHasNoOutcome) {
    stage();
    const messages::UpdatePart refusal =
        refusal_of(kOther, UpdateOrder::kCommit, kFailure, facts());
    EXPECT_FALSE(refusal.ok);
    EXPECT_EQ(refusal.update, kOther);
    EXPECT_EQ(refusal.order, UpdateOrder::kCommit);
    EXPECT_EQ(refusal.epoch, Epoch{5});
    EXPECT_TRUE(refusal.outcome.ranks.empty());
    const messages::UpdatePart dropped =
        nothing_to_drop({.update = kOther, .reason = "it never came"}, facts());
    EXPECT_TRUE(dropped.ok);
    EXPECT_EQ(dropped.update, kOther);
    EXPECT_EQ(dropped.order, UpdateOrder::kDrop);
    EXPECT_EQ(dropped.verdict.message, "it never came");
    EXPECT_TRUE(dropped.outcome.ranks.empty());
}

TEST_F(ReplicaAnswersTest, TheRanksThatHaveNotAnsweredAreAwaited) {
    stage();
    EXPECT_TRUE(awaited_by(facts()).ranks.empty());
    job->round.ask(UpdateOrder::kReady);
    job->round.finish();
    job->round.ask(UpdateOrder::kCommit);
    job->round.record_answer(0, messages::UpdateRound::Answer::kDone);
    const messages::UpdateWaits waits = awaited_by(facts());
    EXPECT_EQ(waits.update, kUpdate);
    EXPECT_EQ(waits.replica, ReplicaId{3});
    EXPECT_EQ(waits.ranks, std::vector<Rank>{Rank{1}});
}

}  // namespace
}  // namespace pitstop::scheduler
