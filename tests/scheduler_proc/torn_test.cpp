// Direct updates that fail half-way, and drops.
#include "tests/scheduler_proc/update_fixture.h"

#include <algorithm>

namespace pitstop::scheduler {
namespace {

TEST_F(UpdateTest, P2_ADirectUpdateThatFailsHalfwayIsTornUntilTheNextComplete) {
    start_requests();
    order(messages::UpdateReady{.update = kUpdate, .kv_policy = messages::KvPolicy::kKeep});
    ASSERT_TRUE(answer().ok);
    EXPECT_EQ(rig.status().state, messages::ReplicaState::kUpdating);
    EXPECT_FALSE(rig.step()) << "it stands still";
    rig.workers.stage_failures[0] = "shard 2 is truncated";
    order_stage(spec_of(messages::UpdateMode::kDirect, messages::KvPolicy::kKeep));
    EXPECT_FALSE(answer().ok);
    order(messages::UpdateDrop{.update = kUpdate});
    const messages::UpdatePart gone = answer();
    EXPECT_EQ(gone.state, messages::UpdateState::kTorn);
    EXPECT_TRUE(rig.scheduler.is_torn());
    EXPECT_EQ(rig.status().state, messages::ReplicaState::kTorn);

    const RequestKey refused = rig.send({.prompt = prompt_of(3)});
    rig.turn();
    ASSERT_TRUE(rig.of(refused).finish);
    EXPECT_EQ(rig.of(refused).finish->verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_FALSE(rig.step()) << "nothing runs on torn weights";
    rig.control(messages::ContinueGeneration{.call = CallId{2}});
    rig.turn();
    EXPECT_EQ(
        rig.take<messages::ContinuePart>().at(0).verdict.code, ErrorCode::kFailedPrecondition
    );
    messages::UpdateSpec partial =
        spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep);
    partial.partial = true;
    order_stage(partial, Epoch{2}, messages::UpdateId{2});
    EXPECT_EQ(answer().verdict.code, ErrorCode::kFailedPrecondition);

    rig.workers.stage_failures[0].reset();
    update(
        messages::UpdateMode::kStaged, messages::KvPolicy::kKeep, Epoch{2}, messages::UpdateId{3}
    );
    EXPECT_FALSE(rig.scheduler.is_torn());
    order(messages::UpdateRollback{.update = messages::UpdateId{4}, .new_epoch = Epoch{5}});
    EXPECT_EQ(answer().verdict.code, ErrorCode::kFailedPrecondition)
        << "torn weights are no version to go back to";
    rig.run();
    for (std::size_t i = 0; i < keys.size(); ++i)
        EXPECT_EQ(rig.of(keys[i]).tokens, rig.expected(asks[i]).tokens) << "P4: none was lost";
}

TEST_F(UpdateTest, ATornReplicaTearsTheOthersToo) {
    order(messages::UpdateDrop{.update = messages::UpdateId{9}, .reason = "replica 1", .torn = true}
    );
    EXPECT_EQ(answer().state, messages::UpdateState::kTorn);
    EXPECT_TRUE(rig.scheduler.is_torn());
}

TEST_F(UpdateTest, P2_AReplicaThatCommitsStandsStillTooWhereAnotherDidNot) {
    order_stage(spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep));
    ASSERT_TRUE(answer().ok);
    order(messages::UpdateReady{.update = kUpdate});
    ASSERT_TRUE(answer().ok);
    rig.workers.is_silent = {true, true};
    rig.control(messages::UpdateCommit{.update = kUpdate});
    rig.control(messages::UpdateDrop{.update = kUpdate, .reason = "replica 1", .torn = true});
    rig.turn();
    EXPECT_EQ(answer().state, messages::UpdateState::kTorn);
    EXPECT_TRUE(rig.scheduler.is_torn());
}

TEST_F(UpdateTest, ADirectUpdateDroppedBeforeItsStageIsNotTorn) {
    start_requests();
    order(messages::UpdateReady{.update = kUpdate, .kv_policy = messages::KvPolicy::kKeep});
    ASSERT_TRUE(answer().ok);
    order(messages::UpdateDrop{.update = kUpdate});
    EXPECT_EQ(answer().state, messages::UpdateState::kServing);
    rig.run();
    for (std::size_t i = 0; i < keys.size(); ++i)
        EXPECT_EQ(rig.of(keys[i]).tokens, rig.expected(asks[i]).tokens);
}

TEST_F(UpdateTest, ADropWhileStagingWaitsForEveryRank) {
    rig.workers.is_silent = {true, true};
    order_stage(spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep));
    order(messages::UpdateDrop{.update = kUpdate});
    EXPECT_TRUE(rig.take<messages::UpdatePart>().empty());
    EXPECT_TRUE(answer().ok);
    order(messages::UpdateDrop{.update = kUpdate});
    EXPECT_TRUE(answer().ok) << "again is harmless";
    rig.workers.is_silent = {false, false};
    update(
        messages::UpdateMode::kStaged, messages::KvPolicy::kKeep, Epoch{2}, messages::UpdateId{2}
    );
}

TEST_F(UpdateTest, ADropAfterTheCommitOrderIsRefused) {
    order_stage(spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep));
    EXPECT_TRUE(answer().ok);
    order(messages::UpdateReady{.update = kUpdate});
    EXPECT_TRUE(answer().ok);
    rig.control(messages::UpdateCommit{.update = kUpdate});
    rig.control(messages::UpdateDrop{.update = kUpdate});
    rig.turn();
    EXPECT_EQ(answer().verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_EQ(answer().order, messages::UpdateOrder::kCommit);
}

TEST_F(UpdateTest, TensorsAndDigestsPassThroughInOrder) {
    order(messages::WorkerReadTensor{.call = CallId{5}, .name = "weight"});
    order(messages::WorkerDigest{.call = CallId{6}});
    rig.run();
    const auto tensors = rig.take<messages::WorkerTensor>();
    ASSERT_EQ(tensors.size(), 2u);
    EXPECT_EQ(tensors[1].rank, Rank{1});
    const auto digests = rig.take<messages::WorkerDigests>();
    ASSERT_EQ(digests.size(), 2u);
    EXPECT_EQ(digests[0].epoch, Epoch{1});
}

}  // namespace
}  // namespace pitstop::scheduler
