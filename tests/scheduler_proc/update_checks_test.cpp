// Which orders about an update a replica refuses, and with what words.
#include "scheduler_proc/update_checks.h"

#include "tests/scheduler_proc/update_facts_fixture.h"

namespace pitstop::scheduler {
namespace {

using messages::UpdateOrder;
using Kind = UpdateJob::Kind;

const WhyNot kFine = std::nullopt;

class UpdateChecksTest : public UpdateFactsTest {
  protected:
    static messages::UpdateStage stage(messages::UpdateMode mode = messages::UpdateMode::kStaged) {
        messages::UpdateStage order{.update = kUpdate, .new_epoch = Epoch{6}};
        order.spec.source.path = "/models/next";
        order.spec.mode = mode;
        return order;
    }
    std::string why_no_stage(const messages::UpdateStage& order, const WhyNot& why_not = kFine) {
        return text_of(problem_of_stage(order, why_not, facts()));
    }
    static std::string text_of(const std::optional<Error>& error) {
        return error ? error->message : "";
    }
};

TEST_F(UpdateChecksTest, ASessionIsOpenedByItsStage) {
    messages::UpdateStage order = stage();
    EXPECT_EQ(order_of(order), UpdateOrder::kStage);
    order.spec.source = {.kind = messages::SourceKind::kBuckets};
    EXPECT_EQ(order_of(order), UpdateOrder::kOpen);
}

TEST_F(UpdateChecksTest, AStageNeedsANewerEpochAndNoOtherUpdate) {
    EXPECT_EQ(why_no_stage(stage()), "");
    EXPECT_EQ(why_no_stage(stage(), "still loading"), "stage of update 7: still loading");
    messages::UpdateStage old = stage();
    old.new_epoch = Epoch{5};
    EXPECT_NE(why_no_stage(old).find('5'), std::string::npos);
    old.spec.adapter = "policy";  // the owner of the adapters checks their versions
    EXPECT_EQ(why_no_stage(old), "");
    start(Kind::kStaged, {});
    EXPECT_EQ(why_no_stage(stage()), "stage of update 7: update 7 is under way");
}

TEST_F(UpdateChecksTest, P2_APartDoesNotRepairTornWeights) {
    weights.tear();
    messages::UpdateStage part = stage();
    part.spec.partial = true;
    EXPECT_EQ(
        why_no_stage(part),
        "stage of update 7: torn or without weights; only a complete update repairs it"
    );
    EXPECT_EQ(why_no_stage(stage()), "");
}

// A direct update overwrites the weights that serve.
TEST_F(UpdateChecksTest, P2_ADirectStageNeedsAReplicaThatHasStoppedForIt) {
    const messages::UpdateStage direct = stage(messages::UpdateMode::kDirect);
    const std::string why = "direct stage of update 7: the replica has not stopped for it";
    EXPECT_EQ(why_no_stage(direct), why);
    start(Kind::kStaged, {UpdateOrder::kStage});
    EXPECT_EQ(why_no_stage(direct), why) << "it is prepared, and runs";
    start(Kind::kDirect, {UpdateOrder::kReady});
    EXPECT_EQ(why_no_stage(direct), "");
    messages::UpdateStage other = direct;
    other.update = kOther;
    EXPECT_NE(why_no_stage(other), "") << "it has stopped for another update";
}

TEST_F(UpdateChecksTest, MemoryOfOneMachineIsNoSourceForRanksOnSeveral) {
    messages::UpdateStage order = stage();
    order.spec.source = {
        .kind = messages::SourceKind::kIpc, .handles = {{"gpu-0", "ipc:///tmp/a.sock"}}};
    EXPECT_EQ(why_no_stage(order), "");
    config.nodes = 2;
    const auto error = problem_of_stage(order, kFine, facts());
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code, ErrorCode::kUnsupported);
    EXPECT_NE(error->message.find("replica 3 spans 2"), std::string::npos) << error->message;
    start(Kind::kStaged, {UpdateOrder::kOpen});
    messages::UpdateFill fill{.update = kUpdate, .source = order.spec.source};
    EXPECT_EQ(problem_of_fill(fill, facts())->code, ErrorCode::kUnsupported);
}

TEST_F(UpdateChecksTest, ABucketNeedsItsOpenSession) {
    messages::UpdateFill fill{.update = kUpdate};
    fill.source.path = "/models/part";
    const std::string why = "fill of update 7: its session is not open";
    EXPECT_EQ(text_of(problem_of_fill(fill, facts())), why);
    start(Kind::kStaged, {UpdateOrder::kOpen});
    EXPECT_EQ(text_of(problem_of_fill(fill, facts())), "");
    fill.update = kOther;
    EXPECT_NE(text_of(problem_of_fill(fill, facts())), "");
    fill.update = kUpdate;
    start(Kind::kStaged, {UpdateOrder::kOpen, UpdateOrder::kStage});
    EXPECT_EQ(text_of(problem_of_fill(fill, facts())), why) << "it has ended";
}

// The door has compared the base's digest, and this replica the adapter's version.
TEST_F(UpdateChecksTest, P2_ASparseBucketNeedsASessionThatBeginsWithAVersion) {
    start(Kind::kStaged, {UpdateOrder::kOpen});
    messages::UpdateFill fill{.update = kUpdate};
    fill.source = {
        .kind = messages::SourceKind::kTensors,
        .format = messages::TensorFormat::kSparse,
        .tensors = {{.name = "a.weight", .dtype = "F32", .shape = {2, 2}}},
        .num_updates = {1},
        .payloads = {{}}};
    const auto why = [&] { return text_of(problem_of_fill(fill, facts())); };
    EXPECT_EQ(
        why(),
        "fill of update 7: a sparse bucket changes the version it was made for; the session named "
        "no base_digest"
    );
    job->spec.base_digest = std::string(32, 'a');
    EXPECT_EQ(why(), "");
    job->spec.adapter = "policy";
    EXPECT_EQ(
        why(),
        "fill of update 7: a sparse bucket changes the adapter's version that serves; the session "
        "is not partial"
    );
    job->spec.partial = true;
    EXPECT_EQ(why(), "");
}

TEST_F(UpdateChecksTest, ARollbackNeedsTheVersionBefore) {
    const auto why = [&](std::int64_t epoch, const WhyNot& why_not = kFine) {
        return text_of(
            problem_of_rollback({.update = kUpdate, .new_epoch = Epoch{epoch}}, why_not, facts())
        );
    };
    EXPECT_EQ(why(7), "rollback of update 7: no previous version is retained");
    weights.serve({.epoch = Epoch{6}}, ReplicaWeights::Old::kRetained);
    EXPECT_EQ(why(7), "");
    EXPECT_NE(why(6), "") << "an epoch that serves";
    EXPECT_EQ(why(7, "still loading"), "rollback of update 7: still loading");
    start(Kind::kStaged, {});
    EXPECT_EQ(why(7), "rollback of update 7: update 7 is under way");
    job.reset();
    weights.tear();
    EXPECT_EQ(why(7), "rollback of update 7: no previous version is retained");
}

TEST_F(UpdateChecksTest, ReadyFollowsTheVotesOfAStagedUpdateAndBeginsADirectOne) {
    const auto why = [&](messages::UpdateId id, const WhyNot& why_not = kFine) {
        return text_of(problem_of_ready({.update = id}, why_not, facts()));
    };
    EXPECT_EQ(why(kUpdate), "") << "a direct update begins";
    EXPECT_EQ(why(kUpdate, "paused"), "ready of update 7: paused");
    start(Kind::kStaged, {UpdateOrder::kOpen});
    EXPECT_EQ(why(kUpdate), "ready of update 7: not every rank is prepared");
    EXPECT_EQ(why(kOther), "ready of update 6: another update is under way");
    start(Kind::kStaged, {UpdateOrder::kStage});
    EXPECT_EQ(why(kUpdate), "");
    start(Kind::kStaged, {UpdateOrder::kStage, UpdateOrder::kReady});
    EXPECT_EQ(why(kUpdate), "ready of update 7: ordered before");
}

// A commit cannot be undone.
TEST_F(UpdateChecksTest, P2_ACommitNeedsEveryVoteAndAReplicaThatStands) {
    const auto why = [&](messages::UpdateId id) {
        return text_of(problem_of_commit({.update = id}, facts()));
    };
    EXPECT_EQ(why(kUpdate), "commit of update 7: no such update");
    start(Kind::kStaged, {});
    job->round.ask(UpdateOrder::kStage);
    EXPECT_EQ(why(kUpdate), "commit of update 7: not every rank is prepared");
    start(Kind::kStaged, {UpdateOrder::kStage});
    EXPECT_EQ(why(kUpdate), "commit of update 7: not standing ready");
    job->round.ask(UpdateOrder::kReady);
    EXPECT_EQ(why(kUpdate), "commit of update 7: not standing ready");
    start(Kind::kStaged, {UpdateOrder::kStage, UpdateOrder::kReady});
    EXPECT_EQ(why(kUpdate), "");
    EXPECT_EQ(why(kOther), "commit of update 6: no such update");
    job->round.ask(UpdateOrder::kCommit);
    EXPECT_EQ(why(kUpdate), "commit of update 7: ended before");
}

}  // namespace
}  // namespace pitstop::scheduler
