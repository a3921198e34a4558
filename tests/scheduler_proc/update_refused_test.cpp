// Updates that fail, come late, are refused or declare another digest: the old version continues to
// serve.
#include "tests/scheduler_proc/update_fixture.h"

#include <algorithm>

namespace pitstop::scheduler {
namespace {

TEST_F(UpdateTest, P2_OneRankThatFailsIsNamedAndTheOldVersionServesOn) {
    start_requests();
    const Version before = rig.scheduler.version();
    rig.workers.stage_failures[1] = "model.norm.weight: shape [8], expected [16]";
    order_stage(spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep));
    const messages::UpdatePart failed = answer();
    EXPECT_FALSE(failed.ok);
    EXPECT_EQ(failed.verdict.code, ErrorCode::kInvalidArgument);
    EXPECT_NE(failed.verdict.message.find("rank 1 in phase stage"), std::string::npos);
    EXPECT_NE(failed.verdict.message.find("expected [16]"), std::string::npos);
    order(messages::UpdateCommit{.update = kUpdate});
    EXPECT_EQ(answer().verdict.code, ErrorCode::kFailedPrecondition)
        << "no commit without all votes";
    order(messages::UpdateDrop{.update = kUpdate, .reason = "a rank failed"});
    const messages::UpdatePart gone = answer();
    EXPECT_TRUE(gone.ok);
    EXPECT_EQ(gone.order, messages::UpdateOrder::kDrop);
    EXPECT_EQ(gone.state, messages::UpdateState::kServing);
    EXPECT_EQ(gone.verdict.message, "a rank failed");
    EXPECT_EQ(gone.outcome.ranks[1].phase, messages::UpdatePhase::kStaging) << "how far it came";
    EXPECT_EQ(gone.outcome.ranks[0].phase, messages::UpdatePhase::kDropped);
    EXPECT_EQ(rig.scheduler.version().epoch, before.epoch);
    rig.run();
    for (std::size_t i = 0; i < keys.size(); ++i)
        EXPECT_EQ(rig.of(keys[i]).tokens, rig.expected(asks[i]).tokens);
}

TEST_F(UpdateTest, P2_ACommitBeforeEveryRankHasVotedIsRefused) {
    rig.workers.is_silent[1] = true;
    order_stage(spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep));
    rig.run();  // rank 0 has voted
    const std::vector<Control> orders{
        messages::UpdateReady{.update = kUpdate}, messages::UpdateCommit{.update = kUpdate}};
    for (const Control& early : orders) {
        order(early);
        const messages::UpdatePart part = answer();
        EXPECT_EQ(part.verdict.code, ErrorCode::kFailedPrecondition);
        EXPECT_NE(part.verdict.message.find("not every rank"), std::string::npos)
            << part.verdict.message;
    }
    EXPECT_EQ(rig.scheduler.version().epoch, Epoch{1});
}

TEST_F(UpdateTest, P5_ARankThatNeverVotesIsNamedAtTheDeadline) {
    rig.workers.is_silent[1] = true;
    order(messages::UpdateStage{
        .update = kUpdate,
        .spec = spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep),
        .new_epoch = Epoch{2},
        .timeout_ms = 1000,
    });
    rig.run();
    const TurnOutput out = rig.turn();
    ASSERT_TRUE(out.wake_at);
    rig.now = *out.wake_at;
    rig.turn();
    const auto parts = rig.take<messages::UpdatePart>();
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_EQ(parts[0].verdict.code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(parts[0].verdict.message.find("phase stage"), std::string::npos);
    EXPECT_NE(parts[0].verdict.message.find("rank 1"), std::string::npos);
    EXPECT_EQ(parts[0].verdict.message.find("rank 0"), std::string::npos);
    order(messages::UpdateDrop{.update = kUpdate});
    EXPECT_TRUE(answer().ok);
}

TEST_F(UpdateTest, P5_AReplicaThatCannotStandInTimeNamesTheStepAndTheRank) {
    start_requests();
    rig.workers.is_silent[1] = true;
    rig.step();
    order(messages::UpdateReady{
        .update = kUpdate, .kv_policy = messages::KvPolicy::kKeep, .timeout_ms = 500});
    const TurnOutput out = rig.turn();  // direct: it waits for the step in flight
    ASSERT_TRUE(out.wake_at);
    rig.now = *out.wake_at;
    rig.turn();
    const auto parts = rig.take<messages::UpdatePart>();
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_EQ(parts[0].order, messages::UpdateOrder::kReady);
    EXPECT_EQ(parts[0].verdict.code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(parts[0].verdict.message.find("phase ready"), std::string::npos)
        << parts[0].verdict.message;
    EXPECT_NE(parts[0].verdict.message.find("rank 1"), std::string::npos)
        << parts[0].verdict.message;
    order(messages::UpdateDrop{.update = kUpdate});
    EXPECT_TRUE(answer().ok);
}

TEST_F(UpdateTest, P5_EveryAnswerSaysWhichRanksAreNotDoneWithADropOrACommit) {
    using Ranks = std::vector<Rank>;
    order_stage(spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep));
    answer();
    rig.workers.never_ends[1] = true;
    order(messages::UpdateDrop{.update = kUpdate});
    auto waits = rig.take<messages::UpdateWaits>();
    ASSERT_EQ(waits.size(), 1u);
    EXPECT_EQ(waits[0].update, kUpdate);
    EXPECT_EQ(waits[0].ranks, (Ranks{Rank{0}, Rank{1}}));
    rig.run();  // rank 0 answers
    waits = rig.take<messages::UpdateWaits>();
    ASSERT_EQ(waits.size(), 1u);
    EXPECT_EQ(waits[0].ranks, Ranks{Rank{1}});
    EXPECT_TRUE(rig.take<messages::UpdatePart>().empty());
}

TEST_F(UpdateTest, P10_ADigestThatIsNotTheDeclaredOneFails) {
    messages::UpdateSpec spec = spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep);
    spec.digest = std::string(32, '0');
    order_stage(spec);
    const messages::UpdatePart part = answer();
    EXPECT_FALSE(part.ok);
    EXPECT_EQ(part.verdict.code, ErrorCode::kDataLoss);
    EXPECT_NE(part.verdict.message.find(spec.digest), std::string::npos);
    order(messages::UpdateDrop{.update = kUpdate});
    EXPECT_TRUE(answer().ok);

    // The right digest, the sum of those in the workers' hellos, is accepted.
    spec.digest = rig.scheduler.version().digest;
    order_stage(spec, Epoch{2}, messages::UpdateId{2});
    EXPECT_TRUE(answer().ok);
}

TEST_F(UpdateTest, P10_EveryTensorThatDiffersFromTheManifestIsListed) {
    messages::UpdateSpec spec = spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep);
    spec.manifest.push_back(
        {.name = "weight", .dtype = "BF16", .shape = {2, 4}, .digest = std::string(32, 'a')}
    );
    spec.manifest.push_back(
        {.name = "other", .dtype = "BF16", .shape = {2, 4}, .digest = std::string(32, 'b')}
    );
    order_stage(spec);
    const messages::UpdatePart part = answer();
    EXPECT_EQ(part.verdict.code, ErrorCode::kDataLoss);
    EXPECT_NE(part.verdict.message.find("2 tensors"), std::string::npos);
    EXPECT_NE(part.verdict.message.find("weight: the resident"), std::string::npos);
    EXPECT_NE(part.verdict.message.find("other is declared"), std::string::npos);
}

TEST_F(UpdateTest, FencingRefusesAnEpochThatIsNotNewer) {
    order_stage(spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep), Epoch{1});
    const messages::UpdatePart part = answer();
    EXPECT_EQ(part.verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_NE(part.verdict.message.find("epoch 1"), std::string::npos);
    update(
        messages::UpdateMode::kStaged, messages::KvPolicy::kKeep, Epoch{70}, messages::UpdateId{2}
    );
    EXPECT_EQ(rig.scheduler.version().epoch, Epoch{70}) << "epochs may jump";
}

TEST_F(UpdateTest, AnUpdateDuringAnUpdateIsRefused) {
    order_stage(spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep));
    EXPECT_TRUE(answer().ok);
    order_stage(
        spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep),
        Epoch{3},
        messages::UpdateId{2}
    );
    EXPECT_EQ(answer().verdict.code, ErrorCode::kFailedPrecondition);
    order(messages::UpdateReady{.update = messages::UpdateId{2}});
    EXPECT_EQ(answer().verdict.code, ErrorCode::kFailedPrecondition);
    order(messages::UpdateRollback{.update = messages::UpdateId{3}, .new_epoch = Epoch{4}});
    EXPECT_EQ(answer().verdict.code, ErrorCode::kFailedPrecondition);
    order(messages::UpdateReady{.update = kUpdate});
    EXPECT_TRUE(answer().ok);
    order(messages::UpdateCommit{.update = kUpdate});
    EXPECT_TRUE(answer().ok);
}

TEST_F(UpdateTest, ADirectStageNeedsAReplicaThatStandsStill) {
    order_stage(spec_of(messages::UpdateMode::kDirect, messages::KvPolicy::kKeep));
    EXPECT_EQ(answer().verdict.code, ErrorCode::kFailedPrecondition);
}

// A source in one machine's memory is refused, whole or bucket by bucket: ranks of another machine
// cannot read it. Files and bytes in the call are accepted.
TEST(ReplicaOnTwoMachines, P2_RefusesSourcesThatAreMemoryOfOne) {
    Rig rig({.tp = 2, .num_pages = 128}, {.nodes = 2});
    const auto answer_to = [&](Control message) {
        rig.control(std::move(message));
        rig.turn();
        for (int i = 0; i < 200; ++i) {
            const auto parts = rig.take<messages::UpdatePart>();
            if (!parts.empty()) return parts[0].verdict;
            rig.step();
        }
        return messages::Verdict(Error{ErrorCode::kInternal, "no answer"});
    };
    const auto stage_of = [](messages::SourceKind kind) {
        messages::UpdateSpec spec =
            spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep);
        spec.source = {};
        spec.source.kind = kind;
        if (kind == messages::SourceKind::kDisk) spec.source.path = "/models/next";
        if (kind == messages::SourceKind::kIpc) spec.source.handles = {{"GPU-0", "ipc:///a"}};
        return messages::UpdateStage{.update = kUpdate, .spec = spec, .new_epoch = Epoch{2}};
    };
    const messages::Verdict refused = answer_to(stage_of(messages::SourceKind::kIpc));
    EXPECT_EQ(refused.code, ErrorCode::kUnsupported) << refused.message;
    EXPECT_NE(refused.message.find("a source of ipc"), std::string::npos) << refused.message;
    EXPECT_NE(refused.message.find("spans 2 (--nodes)"), std::string::npos) << refused.message;

    messages::UpdateFill fill{.update = kUpdate, .bucket = 1};
    fill.source.kind = messages::SourceKind::kIpc;
    fill.source.handles = {{"GPU-0", "ipc:///a"}};
    EXPECT_EQ(answer_to(fill).code, ErrorCode::kUnsupported);
    EXPECT_TRUE(answer_to(stage_of(messages::SourceKind::kDisk)).is_done());
}

}  // namespace
}  // namespace pitstop::scheduler
