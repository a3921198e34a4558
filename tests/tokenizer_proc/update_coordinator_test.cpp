// One update over two replicas, from its stage to its commit or drop.
#include "tests/tokenizer_proc/update_coordinator_fixture.h"

#include <limits>

namespace pitstop::tokenizer {
namespace {

using std::chrono::seconds;

TEST_F(UpdateCoordinatorTest, P2_CommitsOnlyAfterEveryReplicaIsPreparedAndReady) {
    start(call());
    EXPECT_EQ(last_order<messages::UpdateStage>().new_epoch, Epoch{2});
    answer(0, messages::UpdateOrder::kStage);
    EXPECT_EQ(count_orders<messages::UpdateReady>(), 0u);
    answer(1, messages::UpdateOrder::kStage);
    EXPECT_EQ(count_orders<messages::UpdateReady>(), 1u);
    answer(1, messages::UpdateOrder::kReady);
    EXPECT_EQ(count_orders<messages::UpdateCommit>(), 0u);
    answer(0, messages::UpdateOrder::kReady);
    EXPECT_EQ(count_orders<messages::UpdateCommit>(), 1u);
    answer(0, messages::UpdateOrder::kCommit);
    EXPECT_TRUE(out_.replies.empty());
    answer(1, messages::UpdateOrder::kCommit);
    ASSERT_EQ(out_.replies.size(), 1u);
    const messages::UpdateReply& reply = out_.replies.front().second;
    EXPECT_TRUE(reply.ok) << reply.verdict.message;
    EXPECT_EQ(reply.call, CallId{7});
    EXPECT_EQ(reply.epoch, Epoch{2});
    EXPECT_EQ(reply.label, "new");
    EXPECT_EQ(reply.digest, "d2");
    EXPECT_EQ(coordinator_.state(), messages::UpdateState::kServing);
}

TEST_F(UpdateCoordinatorTest, AnAdaptersCommitLeavesTheModelsVersion) {
    start(call());
    for (const auto order :
         {messages::UpdateOrder::kStage,
          messages::UpdateOrder::kReady,
          messages::UpdateOrder::kCommit})
        both_answer(order);
    ++next_update_;
    out_ = {};
    messages::UpdateWeights load = call();
    load.update.adapter = "a";
    start(load);
    EXPECT_EQ(last_order<messages::UpdateStage>().new_epoch, Epoch{2}) << "its update's number";
    both_answer(messages::UpdateOrder::kStage);
    both_answer(messages::UpdateOrder::kReady);
    EXPECT_EQ(count_orders<messages::UpdateCommit>(), 1u);
    answer(0, messages::UpdateOrder::kCommit);
    EXPECT_TRUE(out_.replies.empty());
    answer(1, messages::UpdateOrder::kCommit);
    ASSERT_EQ(out_.replies.size(), 1u);
    EXPECT_TRUE(out_.replies.front().second.ok);
    EXPECT_EQ(out_.replies.front().second.adapter, "a");
    // The copy that the model's commit retained still exists, and its next epoch is 3.
    out_ = {};
    ++next_update_;
    messages::RollbackWeights rollback;
    rollback.call = CallId{9};
    coordinator_.handle(now_, {"trainer", rollback.call}, rollback, out_);
    EXPECT_EQ(last_order<messages::UpdateRollback>().new_epoch, Epoch{3});
}

TEST_F(UpdateCoordinatorTest, P2_AReplicaThatRefusesAnAdapterLeavesItNowhere) {
    messages::UpdateWeights load = call();
    load.update.adapter = "a";
    start(load);
    answer(0, messages::UpdateOrder::kStage);
    answer(1, messages::UpdateOrder::kStage, false, ErrorCode::kInvalidArgument);
    EXPECT_EQ(count_orders<messages::UpdateCommit>(), 0u);
    EXPECT_FALSE(last_order<messages::UpdateDrop>().torn);
    both_answer(messages::UpdateOrder::kDrop);
    ASSERT_EQ(out_.replies.size(), 1u);
    EXPECT_FALSE(out_.replies.front().second.ok);
    EXPECT_EQ(out_.replies.front().second.adapter, "a");
    EXPECT_EQ(coordinator_.state(), messages::UpdateState::kServing);
}

TEST_F(UpdateCoordinatorTest, AnAdaptersCommitTakesNoKvPolicy) {
    messages::BeginUpdate begin;
    begin.call = CallId{1};
    begin.update.source.kind = messages::SourceKind::kBuckets;
    begin.update.adapter = "a";
    begin.update.adapter_config = "{}";
    coordinator_.handle(now_, {"peer", begin.call}, begin, out_);
    both_answer(messages::UpdateOrder::kOpen);
    out_ = {};
    messages::CommitWeights commit;
    commit.call = CallId{2};
    commit.session = 1;
    commit.kv_policy = messages::KvPolicy::kRecompute;
    coordinator_.handle(now_, {"peer", commit.call}, commit, out_);
    ASSERT_EQ(out_.replies.size(), 1u);
    EXPECT_EQ(out_.replies.front().second.verdict.code, ErrorCode::kInvalidArgument);
    commit.call = CallId{3};
    commit.kv_policy = messages::KvPolicy::kKeep;
    coordinator_.handle(now_, {"peer", commit.call}, commit, out_);
    EXPECT_EQ(count_orders<messages::UpdateFinish>(), 1u);
}

// 2^63 ms and more are far beyond the clock's range.
TEST_F(UpdateCoordinatorTest, P5_TheLongestTimeoutsOverflowNothing) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    messages::BeginUpdate begin;
    begin.call = CallId{1};
    begin.timeout_ms = kMost;
    begin.idle_timeout_ms = kMost;
    begin.update.source.kind = messages::SourceKind::kBuckets;
    coordinator_.handle(now_, {"peer", begin.call}, begin, out_);
    EXPECT_GT(*coordinator_.next_deadline(), now_);
    EXPECT_LE(*coordinator_.next_deadline(), now_ + std::chrono::hours(24));
    EXPECT_GT(last_order<messages::UpdateStage>().timeout_ms, 0);
    both_answer(messages::UpdateOrder::kOpen);
    ASSERT_TRUE(coordinator_.is_open());
    EXPECT_GT(*coordinator_.next_deadline(), now_);
    EXPECT_LE(*coordinator_.next_deadline(), now_ + std::chrono::hours(24));
    messages::DropStage drop;
    drop.call = CallId{2};
    drop.timeout_ms = kMost;
    coordinator_.handle(now_, {"peer", drop.call}, drop, out_);
    EXPECT_GT(*coordinator_.next_deadline(), now_);
    coordinator_.tick(now_, out_);
    EXPECT_EQ(out_.replies.size(), 1u) << "nobody was told that their time is up";
}

// A scheduler that follows the protocol never does this. The caller must not get an OK (P10).
TEST_F(UpdateCoordinatorTest, P2_AReplicaThatDoesNotCommitLeavesEveryoneTornAndNobodyMixed) {
    start(call());
    both_answer(messages::UpdateOrder::kStage);
    both_answer(messages::UpdateOrder::kReady);
    ASSERT_EQ(count_orders<messages::UpdateCommit>(), 1u);
    answer(0, messages::UpdateOrder::kCommit);
    answer(1, messages::UpdateOrder::kCommit, /*ok=*/false, ErrorCode::kFailedPrecondition);
    EXPECT_TRUE(out_.replies.empty());
    EXPECT_TRUE(last_order<messages::UpdateDrop>().torn);
    answer(0, messages::UpdateOrder::kDrop, true, std::nullopt, "d2", messages::UpdateState::kTorn);
    answer(1, messages::UpdateOrder::kDrop, true, std::nullopt, "d1", messages::UpdateState::kTorn);
    ASSERT_EQ(out_.replies.size(), 1u);
    const messages::UpdateReply& reply = out_.replies.front().second;
    EXPECT_FALSE(reply.ok);
    EXPECT_EQ(reply.state, messages::UpdateState::kTorn);
    EXPECT_NE(reply.verdict.message.find("replica 1"), std::string::npos) << reply.verdict.message;
    out_ = {};
    ++next_update_;
    start(call());
    EXPECT_EQ(last_order<messages::UpdateStage>().new_epoch, Epoch{3})
        << "newer than any replica's";
}

TEST_F(UpdateCoordinatorTest, P2_OneReplicaFailingDropsTheStageEverywhere) {
    start(call());
    answer(0, messages::UpdateOrder::kStage);
    answer(1, messages::UpdateOrder::kStage, /*ok=*/false, ErrorCode::kDataLoss);
    EXPECT_EQ(count_orders<messages::UpdateDrop>(), 1u);
    EXPECT_EQ(count_orders<messages::UpdateCommit>(), 0u);
    EXPECT_TRUE(out_.replies.empty()) << "the answer waits until the stage is gone";
    both_answer(messages::UpdateOrder::kDrop);
    ASSERT_EQ(out_.replies.size(), 1u);
    const messages::UpdateReply& reply = out_.replies.front().second;
    EXPECT_FALSE(reply.ok);
    EXPECT_EQ(reply.verdict.code, ErrorCode::kDataLoss);
    EXPECT_NE(reply.verdict.message.find("replica 1: rank 1: disk on fire"), std::string::npos)
        << reply.verdict.message;
    EXPECT_EQ(reply.epoch, Epoch{1});
    EXPECT_EQ(reply.digest, "d1");
    EXPECT_EQ(coordinator_.state(), messages::UpdateState::kServing);
}

TEST_F(UpdateCoordinatorTest, ReplicasThatStagedDifferentWeightsAreRefused) {
    start(call());
    answer(0, messages::UpdateOrder::kStage, true, std::nullopt, "d2");
    answer(1, messages::UpdateOrder::kStage, true, std::nullopt, "d3");
    EXPECT_EQ(count_orders<messages::UpdateDrop>(), 1u);
    both_answer(messages::UpdateOrder::kDrop);
    ASSERT_EQ(out_.replies.size(), 1u);
    EXPECT_EQ(out_.replies.front().second.verdict.code, ErrorCode::kDataLoss);
}

TEST_F(UpdateCoordinatorTest, P5_ALateReplicaIsNamedWithThePhase) {
    start(call());
    answer(0, messages::UpdateOrder::kStage);
    now_ += seconds(59);
    coordinator_.tick(now_, out_);
    EXPECT_EQ(count_orders<messages::UpdateDrop>(), 0u);
    now_ += seconds(1);
    EXPECT_EQ(coordinator_.next_deadline(), now_);
    coordinator_.tick(now_, out_);
    EXPECT_EQ(count_orders<messages::UpdateDrop>(), 1u);
    answer(0, messages::UpdateOrder::kDrop);
    now_ += TreeUpdate::kDropTimeout;
    coordinator_.tick(now_, out_);
    ASSERT_EQ(out_.replies.size(), 1u);
    const messages::UpdateReply& reply = out_.replies.front().second;
    EXPECT_EQ(reply.verdict.code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(reply.verdict.message.find("phase drop: no answer from replica 1"), std::string::npos)
        << reply.verdict.message;
    EXPECT_NE(
        reply.verdict.message.find("phase stage: no answer from replica 1"), std::string::npos
    ) << reply.verdict.message;

    // The order to drop remains in force: no update begins before replica 1 has dropped.
    start(call());
    EXPECT_EQ(out_.replies.back().second.verdict.code, ErrorCode::kFailedPrecondition);
    answer(1, messages::UpdateOrder::kDrop);
    EXPECT_EQ(coordinator_.state(), messages::UpdateState::kServing);
    EXPECT_EQ(out_.replies.size(), 2u) << "the first caller is not answered twice";
}

TEST_F(UpdateCoordinatorTest, P5_ALateCommitNamesTheRanksThatAreNotDone) {
    start(call());
    both_answer(messages::UpdateOrder::kStage);
    EXPECT_GT(last_order<messages::UpdateReady>().timeout_ms, 0);
    EXPECT_LT(last_order<messages::UpdateReady>().timeout_ms, 60'000)
        << "a replica speaks before the door";
    both_answer(messages::UpdateOrder::kReady);
    const auto waits = [&](int replica, std::vector<Rank> ranks) {
        coordinator_.record_awaited(
            {.update = messages::UpdateId{next_update_},
             .replica = ReplicaId{replica},
             .ranks = std::move(ranks)}
        );
    };
    waits(0, {Rank{0}, Rank{1}});
    waits(1, {Rank{0}, Rank{1}, Rank{2}});
    waits(1, {Rank{0}, Rank{2}});
    answer(0, messages::UpdateOrder::kCommit);
    coordinator_.record_awaited({.update = messages::UpdateId{77}, .replica = ReplicaId{1}}
    );  // an unknown update
    coordinator_.record_awaited(
        {.update = messages::UpdateId{next_update_}, .replica = ReplicaId{9}}
    );
    now_ += seconds(60);
    coordinator_.tick(now_, out_);
    ASSERT_EQ(out_.replies.size(), 1u);
    const std::string& message = out_.replies[0].second.verdict.message;
    EXPECT_NE(message.find("phase commit: no answer from replica 1 (rank 0, 2)"), std::string::npos)
        << message;
    EXPECT_EQ(message.find("replica 0"), std::string::npos) << message;
}

TEST_F(UpdateCoordinatorTest, AnUpdateDuringAnUpdateIsRefused) {
    start(call());
    start(call());
    ASSERT_EQ(out_.replies.size(), 1u);
    EXPECT_EQ(out_.replies.front().second.verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_EQ(count_orders<messages::UpdateStage>(), 1u);
}

TEST_F(UpdateCoordinatorTest, AnEpochThatIsNotNewerIsRefused) {
    for (const std::int64_t epoch : {0, 1}) {
        messages::UpdateWeights update = call();
        update.update.epoch = Epoch{epoch};
        start(update);
    }
    ASSERT_EQ(out_.replies.size(), 2u);
    EXPECT_EQ(out_.replies[0].second.verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_EQ(out_.replies[1].second.verdict.code, ErrorCode::kFailedPrecondition);
    messages::UpdateWeights update = call();
    update.update.epoch = Epoch{9};
    start(update);
    EXPECT_EQ(last_order<messages::UpdateStage>().new_epoch, Epoch{9});
}

TEST_F(UpdateCoordinatorTest, LateAndDoubleAnswersChangeNothing) {
    start(call());
    answer(0, messages::UpdateOrder::kStage);
    answer(0, messages::UpdateOrder::kStage);
    answer(0, messages::UpdateOrder::kReady);
    answer(1, messages::UpdateOrder::kCommit);
    EXPECT_EQ(coordinator_.num_late_parts(), 3);
    EXPECT_EQ(count_orders<messages::UpdateReady>(), 0u);
    next_update_ = 99;
    answer(1, messages::UpdateOrder::kStage);
    EXPECT_EQ(coordinator_.num_late_parts(), 4);
}

TEST_F(UpdateCoordinatorTest, DirectStandsStillBeforeItOverwrites) {
    start(call(messages::UpdateMode::kDirect));
    EXPECT_EQ(count_orders<messages::UpdateStage>(), 0u);
    both_answer(messages::UpdateOrder::kReady);
    EXPECT_EQ(count_orders<messages::UpdateStage>(), 1u);
    both_answer(messages::UpdateOrder::kStage);
    both_answer(messages::UpdateOrder::kCommit);
    ASSERT_EQ(out_.replies.size(), 1u);
    EXPECT_TRUE(out_.replies.front().second.ok);

    messages::RollbackWeights rollback;
    rollback.call = CallId{8};
    coordinator_.handle(now_, {"trainer", rollback.call}, rollback, out_);
    EXPECT_EQ(out_.replies.back().second.verdict.code, ErrorCode::kFailedPrecondition)
        << "direct keeps no copy";
}

TEST_F(UpdateCoordinatorTest, P2_ADirectUpdateThatFailsHalfWayIsTornUntilACompleteOne) {
    start(call(messages::UpdateMode::kDirect));
    both_answer(messages::UpdateOrder::kReady);
    answer(0, messages::UpdateOrder::kStage, /*ok=*/false, ErrorCode::kDataLoss);
    EXPECT_TRUE(last_order<messages::UpdateDrop>().torn);
    answer(0, messages::UpdateOrder::kDrop, true, std::nullopt, "", messages::UpdateState::kTorn);
    answer(1, messages::UpdateOrder::kDrop, true, std::nullopt, "", messages::UpdateState::kTorn);
    ASSERT_EQ(out_.replies.size(), 1u);
    EXPECT_EQ(out_.replies.front().second.state, messages::UpdateState::kTorn);
    EXPECT_TRUE(coordinator_.is_torn());

    messages::UpdateWeights partial = call();
    partial.update.partial = true;
    start(partial);
    EXPECT_EQ(out_.replies.back().second.verdict.code, ErrorCode::kFailedPrecondition);

    start(call(messages::UpdateMode::kDirect));
    next_update_ = 2;
    both_answer(messages::UpdateOrder::kReady);
    both_answer(messages::UpdateOrder::kStage);
    both_answer(messages::UpdateOrder::kCommit);
    EXPECT_TRUE(out_.replies.back().second.ok);
    EXPECT_FALSE(coordinator_.is_torn());
}

TEST_F(UpdateCoordinatorTest, P2_ADirectUpdateRefusedBeforeItsFirstByteTearsNothing) {
    const auto refused = [&](int replica, std::vector<messages::RankOutcome> ranks) {
        messages::UpdatePart part;
        part.update = messages::UpdateId{next_update_};
        part.replica = ReplicaId{replica};
        part.order = messages::UpdateOrder::kStage;
        part.verdict.code = ErrorCode::kNotFound;
        part.verdict.message = "no such directory";
        part.outcome.ranks = std::move(ranks);
        coordinator_.handle_part(now_, part, out_);
    };
    const messages::RankOutcome idle{.rank = Rank{0}, .phase = messages::UpdatePhase::kIdle};
    const messages::RankOutcome writing{.rank = Rank{1}, .phase = messages::UpdatePhase::kStaging};
    UpdateCoordinator alone(1);
    coordinator_ = alone;
    start(call(messages::UpdateMode::kDirect));
    answer(0, messages::UpdateOrder::kReady);
    refused(0, {idle, idle});
    EXPECT_FALSE(last_order<messages::UpdateDrop>().torn);

    coordinator_ = alone;
    start(call(messages::UpdateMode::kDirect));
    answer(0, messages::UpdateOrder::kReady);
    refused(0, {idle, writing});
    EXPECT_TRUE(last_order<messages::UpdateDrop>().torn) << "another rank may be writing";

    coordinator_ = UpdateCoordinator(2);
    start(call(messages::UpdateMode::kDirect));
    both_answer(messages::UpdateOrder::kReady);
    refused(0, {idle, idle});
    EXPECT_TRUE(last_order<messages::UpdateDrop>().torn) << "another replica may be writing";
}

TEST_F(UpdateCoordinatorTest, P5_TheCallerHearsByTheirDeadlineThoughTheDropGoesOn) {
    start(call());  // 60 s
    answer(0, messages::UpdateOrder::kStage);
    now_ += std::chrono::milliseconds(59'500);
    answer(1, messages::UpdateOrder::kStage, /*ok=*/false, ErrorCode::kDataLoss);
    answer(0, messages::UpdateOrder::kDrop);
    EXPECT_TRUE(out_.replies.empty());
    now_ += std::chrono::milliseconds(500);
    ASSERT_LE(coordinator_.next_deadline(), now_);
    coordinator_.tick(now_, out_);
    ASSERT_EQ(out_.replies.size(), 1u);
    EXPECT_EQ(out_.replies[0].second.verdict.code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(out_.replies[0].second.verdict.message.find("disk on fire"), std::string::npos);
    EXPECT_EQ(coordinator_.state(), messages::UpdateState::kDropping)
        << "and no other update begins";
    answer(1, messages::UpdateOrder::kDrop);
    EXPECT_EQ(coordinator_.state(), messages::UpdateState::kServing);
    EXPECT_EQ(out_.replies.size(), 1u);
}

TEST_F(UpdateCoordinatorTest, StageThenCommitInSeparateCalls) {
    messages::StageWeights stage;
    stage.call = CallId{1};
    stage.update = call().update;
    coordinator_.handle(now_, {"trainer", stage.call}, stage, out_);
    both_answer(messages::UpdateOrder::kStage);
    ASSERT_EQ(out_.replies.size(), 1u);
    EXPECT_TRUE(out_.replies[0].second.ok);
    EXPECT_EQ(out_.replies[0].second.state, messages::UpdateState::kStaged);
    EXPECT_EQ(out_.replies[0].second.epoch, Epoch{2});
    EXPECT_EQ(coordinator_.version().epoch, Epoch{1});

    messages::CommitWeights commit;
    commit.call = CallId{2};
    commit.kv_policy = messages::KvPolicy::kRecompute;
    coordinator_.handle(now_, {"trainer", commit.call}, commit, out_);
    EXPECT_EQ(last_order<messages::UpdateReady>().kv_policy, messages::KvPolicy::kRecompute);
    both_answer(messages::UpdateOrder::kReady);
    both_answer(messages::UpdateOrder::kCommit);
    ASSERT_EQ(out_.replies.size(), 2u);
    EXPECT_TRUE(out_.replies[1].second.ok);
    EXPECT_EQ(coordinator_.version().epoch, Epoch{2});

    coordinator_.handle(now_, {"trainer", commit.call}, commit, out_);
    EXPECT_EQ(out_.replies.back().second.verdict.code, ErrorCode::kFailedPrecondition)
        << "nothing is staged any more";
}

TEST_F(UpdateCoordinatorTest, AStageCanBeDroppedAndExpiresByItself) {
    messages::StageWeights stage;
    stage.call = CallId{1};
    stage.update = call().update;
    coordinator_.handle(now_, {"trainer", stage.call}, stage, out_);
    both_answer(messages::UpdateOrder::kStage);
    coordinator_.handle(now_, {"trainer", CallId{2}}, messages::DropStage{CallId{2}, 0}, out_);
    both_answer(messages::UpdateOrder::kDrop);
    ASSERT_EQ(out_.replies.size(), 2u);
    EXPECT_TRUE(out_.replies[1].second.ok);
    EXPECT_EQ(out_.replies[1].second.epoch, Epoch{1});

    coordinator_.handle(now_, {"trainer", CallId{3}}, stage, out_);
    next_update_ = 2;
    both_answer(messages::UpdateOrder::kStage);
    now_ += TreeUpdate::kStagedHoldMax;
    coordinator_.tick(now_, out_);
    EXPECT_EQ(count_orders<messages::UpdateDrop>(), 2u);
    both_answer(messages::UpdateOrder::kDrop);
    EXPECT_EQ(coordinator_.state(), messages::UpdateState::kServing);
}

TEST_F(UpdateCoordinatorTest, RollbackNeedsARetainedVersionAndCountsAsACommit) {
    messages::RollbackWeights rollback;
    rollback.call = CallId{8};
    coordinator_.handle(now_, {"trainer", rollback.call}, rollback, out_);
    EXPECT_EQ(out_.replies.back().second.verdict.code, ErrorCode::kFailedPrecondition);

    start(call());
    both_answer(messages::UpdateOrder::kStage), both_answer(messages::UpdateOrder::kReady),
        both_answer(messages::UpdateOrder::kCommit);
    coordinator_.handle(now_, {"trainer", rollback.call}, rollback, out_);
    EXPECT_EQ(last_order<messages::UpdateRollback>().new_epoch, Epoch{3});
    next_update_ = 2;
    both_answer(messages::UpdateOrder::kStage), both_answer(messages::UpdateOrder::kReady),
        both_answer(messages::UpdateOrder::kCommit);
    EXPECT_TRUE(out_.replies.back().second.ok);
    EXPECT_EQ(coordinator_.version().epoch, Epoch{3});
}

TEST_F(UpdateCoordinatorTest, P4_TheCallerIsAnsweredWhenTheTreeEnds) {
    start(call());
    coordinator_.fail("tp_worker[0.1] died", out_);
    ASSERT_EQ(out_.replies.size(), 1u);
    const messages::Verdict& verdict = out_.replies.front().second.verdict;
    EXPECT_EQ(verdict.code, ErrorCode::kUnavailable);
    EXPECT_EQ(verdict.message, "phase stage: tp_worker[0.1] died");
}

}  // namespace
}  // namespace pitstop::tokenizer
