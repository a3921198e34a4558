// Which version serves, its label, and which clients are told.
#include "tests/tokenizer_proc/admin_fixture.h"

namespace pitstop::tokenizer {
namespace {

using namespace std::chrono_literals;

TEST_F(AdminTest, ANewLabelIsKnownToLaterAnswersAboutWeights) {
    start(2);
    call(messages::SetWeightLabel{.label = "step-7"});
    for (const int replica : {0, 1}) {
        messages::LabelPart part;
        part.call = order<messages::SetWeightLabel>(replica).call;
        part.replica = ReplicaId{replica};
        part.epoch = Epoch{1};
        part.label = "step-7";
        from_tree(part);
    }
    EXPECT_TRUE(reply<messages::LabelReply>().ok);
    call(messages::DropStage{});  // nothing is staged: the answer names the version that serves
    EXPECT_EQ(reply<messages::UpdateReply>().label, "step-7");
}

TEST_F(AdminTest, LabelCallsUnderWayTogetherDoNotConfuseEachOther) {
    start();
    call(messages::SetWeightLabel{.label = "one"}, 1);
    call(messages::SetWeightLabel{.label = "two"}, 2);
    const auto label_part = [&](const std::string& label, std::optional<ErrorCode> code) {
        messages::LabelPart part;
        part.call = order<messages::SetWeightLabel>(0).call;
        part.label = label;
        part.verdict.code = code;
        from_tree(part);
        return reply<messages::LabelReply>();
    };
    EXPECT_TRUE(label_part("one", std::nullopt).ok);
    call(messages::DropStage{});
    EXPECT_EQ(reply<messages::UpdateReply>().label, "one") << "the second call is still under way";
    EXPECT_FALSE(label_part("one", ErrorCode::kFailedPrecondition).ok);
    call(messages::DropStage{});
    EXPECT_EQ(reply<messages::UpdateReply>().label, "one") << "and was refused";
}

TEST_F(AdminTest, P2_TheLauncherKnowsTheVersionBeforeItsCallerDoes) {
    weights_path_ = "/checkpoints/7";
    start();
    EXPECT_EQ(status().weights_path, "/checkpoints/7");
    call(messages::SetWeightLabel{.label = "step-7"});
    messages::LabelPart part;
    part.call = order<messages::SetWeightLabel>(0).call;
    part.label = "step-7";
    from_tree(part);
    EXPECT_TRUE(reply<messages::LabelReply>().ok);
    messages::UpdateWeights update;
    update.update.source.path = "/checkpoints/8";
    call(update);
    update_part(order<messages::UpdateStage>(0).update, messages::UpdateOrder::kStage, "step-8");
    update_part(order<messages::UpdateReady>(0).update, messages::UpdateOrder::kReady);
    ASSERT_EQ(served_.size(), 3u) << "with the order to commit: a replica may serve it from now on";
    const messages::UpdateId commit = order<messages::UpdateCommit>(0).update;
    EXPECT_FALSE(has_message("admin", messages::Door::kAdmin));
    update_part(commit, messages::UpdateOrder::kCommit);
    EXPECT_TRUE(reply<messages::UpdateReply>().ok);
    ASSERT_EQ(served_.size(), 3u);
    EXPECT_EQ(num_answers_at_served_, 0u);
    const ServedVersion relabelled{
        .epoch = Epoch{1}, .label = "step-7", .digest = "d1", .path = "/checkpoints/7"};
    const ServedVersion updated{
        .epoch = Epoch{2}, .label = "step-8", .digest = "d-step-8", .path = "/checkpoints/8"};
    EXPECT_EQ(served_[0].digest, "d1") << "what was loaded, so that a restart loads the same";
    EXPECT_EQ(served_[1], relabelled);
    EXPECT_EQ(served_[2], updated);
    call(messages::RollbackWeights{});
    update_part(order<messages::UpdateRollback>(0).update, messages::UpdateOrder::kStage, "step-7");
    update_part(order<messages::UpdateReady>(0).update, messages::UpdateOrder::kReady);
    update_part(order<messages::UpdateCommit>(0).update, messages::UpdateOrder::kCommit);
    EXPECT_EQ(served_.back().path, "/checkpoints/7")
        << "also where no update of this tree brought it";
    EXPECT_EQ(status().weights_path, "/checkpoints/7");
}

TEST_F(AdminTest, P2_ACommitThatSomeReplicaRefusedIsTheOneThatComesBack) {
    start(2);
    messages::UpdateWeights update;
    update.update.source.path = "/checkpoints/8";
    call(update);
    const auto part = [&](int replica, messages::UpdateId id, messages::UpdateOrder order, bool ok
                      ) {
        messages::UpdatePart message;
        message.replica = ReplicaId{replica};
        message.update = id;
        message.order = order;
        message.ok = ok;
        message.state = ok ? messages::UpdateState::kServing : messages::UpdateState::kTorn;
        message.label = "step-8";
        message.digest = "d8";
        from_tree(message);
    };
    const messages::UpdateId id = order<messages::UpdateStage>(0).update;
    for (const int replica : {0, 1}) part(replica, id, messages::UpdateOrder::kStage, true);
    for (const int replica : {0, 1}) part(replica, id, messages::UpdateOrder::kReady, true);
    part(0, id, messages::UpdateOrder::kCommit, true);  // replica 0 generates from here on
    part(1, id, messages::UpdateOrder::kCommit, false);
    for (const int replica : {0, 1}) part(replica, id, messages::UpdateOrder::kDrop, false);
    EXPECT_FALSE(reply<messages::UpdateReply>().ok);
    const ServedVersion decided{
        .epoch = Epoch{2}, .label = "step-8", .digest = "d8", .path = "/checkpoints/8"};
    EXPECT_EQ(served_.back(), decided);
}

// A restart would load other weights from the directory.
TEST_F(AdminTest, P2_AVersionThatWasSentHasNoDirectoryEvenIfItsSourceNamesOne) {
    start();
    messages::UpdateWeights update;
    update.update.source.kind = messages::SourceKind::kIpc;
    update.update.source.handles = {{"cpu", "ipc:///tmp/sender"}};
    update.update.source.path = "/checkpoints/8";
    call(update);
    update_part(order<messages::UpdateStage>(0).update, messages::UpdateOrder::kStage, "step-8");
    update_part(order<messages::UpdateReady>(0).update, messages::UpdateOrder::kReady);
    update_part(order<messages::UpdateCommit>(0).update, messages::UpdateOrder::kCommit);
    EXPECT_TRUE(reply<messages::UpdateReply>().ok);
    EXPECT_EQ(served_.back().label, "step-8");
    EXPECT_EQ(served_.back().path, "");
}

TEST_F(AdminTest, ALostVersionIsToldUntilAnotherIsCommitted) {
    has_weights_ = false;
    lost_ = messages::LostVersion{.label = "step-7", .digest = "d7", .why = "gone"};
    start();
    ASSERT_TRUE(status().lost.has_value());
    EXPECT_EQ(status().lost->epoch, Epoch{1}) << "the hello's: epochs go on counting";
    EXPECT_EQ(status().lost->label, "step-7");
    EXPECT_FALSE(status().is_ready);
    messages::UpdateWeights update;
    update.update.source.path = "/checkpoints/8";
    call(update);
    update_part(order<messages::UpdateStage>(0).update, messages::UpdateOrder::kStage, "step-8");
    update_part(order<messages::UpdateReady>(0).update, messages::UpdateOrder::kReady);
    EXPECT_TRUE(status().lost.has_value());
    update_part(order<messages::UpdateCommit>(0).update, messages::UpdateOrder::kCommit);
    EXPECT_FALSE(status().lost.has_value());
    EXPECT_TRUE(status().is_ready);
}

TEST_F(AdminTest, ACommittedVersionIsKeptByReplicaZero) {
    keep_committed_ = "/kept";
    start(2);
    EXPECT_EQ(status().keep->state, messages::KeepState::kIdle);
    messages::UpdateWeights update;
    update.update.source.path = "/checkpoints/8";
    call(update);
    const auto part = [&](int replica, messages::UpdateId id, messages::UpdateOrder order) {
        messages::UpdatePart message;
        message.replica = ReplicaId{replica};
        message.update = id;
        message.order = order;
        message.ok = true;
        message.state = messages::UpdateState::kServing;
        message.digest = "d8";
        from_tree(message);
    };
    const messages::UpdateId id = order<messages::UpdateStage>(0).update;
    for (const messages::UpdateOrder order :
         {messages::UpdateOrder::kStage, messages::UpdateOrder::kReady})
        for (const int replica : {0, 1}) part(replica, id, order);
    part(0, id, messages::UpdateOrder::kCommit);
    EXPECT_THROW(order<messages::WorkerKeep>(0), std::runtime_error)
        << "not committed everywhere yet";
    part(1, id, messages::UpdateOrder::kCommit);
    const messages::WorkerKeep begin = order<messages::WorkerKeep>(0);
    EXPECT_EQ(begin.step, messages::KeepStep::kBegin);
    EXPECT_EQ(begin.digest, "d8");
    EXPECT_THROW(order<messages::WorkerKeep>(1), std::runtime_error) << "it holds the same weights";
    EXPECT_EQ(status().keep->state, messages::KeepState::kWriting);
}

TEST_F(AdminTest, StatusNamesACallByItsOwnTypeWhateverElseWasAskedMeanwhile) {
    start();
    messages::UpdateWeights update;
    update.update.source.path = "/checkpoints/8";
    call(update, 1);
    call(messages::DropStage{}, 2);  // refused: nothing is staged
    EXPECT_FALSE(reply<messages::UpdateReply>().ok);
    update_part(order<messages::UpdateStage>(0).update, messages::UpdateOrder::kStage, "step-8");
    update_part(order<messages::UpdateReady>(0).update, messages::UpdateOrder::kReady);
    update_part(order<messages::UpdateCommit>(0).update, messages::UpdateOrder::kCommit);
    EXPECT_TRUE(reply<messages::UpdateReply>().ok);
    const messages::StatusReply now = status();
    ASSERT_EQ(now.updates.size(), 2u);
    EXPECT_EQ(now.updates[1].what, "update_weights");
    EXPECT_EQ(now.updates_total, 1);
    EXPECT_EQ(now.updates_failed_total, 0);
}

TEST_F(AdminTest, StatusListsTheLatestUpdates) {
    start();
    for (int i = 0; i < 20; ++i) {
        call(messages::RollbackWeights{});
        EXPECT_FALSE(reply<messages::UpdateReply>().ok);
    }
    call(messages::DropStage{});
    EXPECT_FALSE(reply<messages::UpdateReply>().ok);
    wait(3000ms);
    const messages::StatusReply now = status();
    ASSERT_EQ(now.updates.size(), UpdateHistory::kShown);
    EXPECT_EQ(now.updates.back().what, "drop_stage");
    EXPECT_EQ(now.updates.front().what, "rollback_weights");
    EXPECT_EQ(now.updates.front().verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_GE(now.updates.back().age_s, 0);
    EXPECT_EQ(now.updates_total, 0);
    EXPECT_EQ(now.updates_failed_total, 20);
}

}  // namespace
}  // namespace pitstop::tokenizer
