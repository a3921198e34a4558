// This replica's update alone: whose answers count, in which order it reports, and what it refuses.
#include "scheduler_proc/replica_update.h"

#include "messages/version_digest.h"

#include <gtest/gtest.h>

#include <vector>

namespace pitstop::scheduler {
namespace {

using messages::UpdateId;
using messages::UpdateOrder;
using messages::UpdateState;
using std::chrono::seconds;

constexpr TimePoint kStart{seconds(100)};
constexpr UpdateId kUpdate{7};

class ReplicaUpdateTest : public testing::Test {
  protected:
    ReplicaUpdateTest() : update({.tp = 2}) {
        update.open("digest-1", /*has_weights=*/true, /*lends=*/false);
    }

    void stage(messages::UpdateMode mode = messages::UpdateMode::kStaged) {
        messages::UpdateStage order{.update = kUpdate, .new_epoch = Epoch{2}};
        order.spec.source.path = "/models/next";
        order.spec.mode = mode;
        if (update.may_stage(order, std::nullopt, out))
            update.stage(std::move(order), std::nullopt, kStart, out);
    }
    void stop() {
        update.make_ready({.update = kUpdate}, kStart, 0, std::nullopt, out);
        update.advance(kStart, /*is_still=*/true, /*is_run_out=*/true, out);
    }
    bool vote(
        Rank rank, bool is_yes = true, UpdateId id = kUpdate, const std::string& config_digest = ""
    ) {
        messages::WorkerStaged vote{.update = id};
        vote.outcome = {.rank = rank, .ok = is_yes, .phase = messages::UpdatePhase::kPrepared};
        if (!is_yes) vote.outcome.problems = {"shard 2 is truncated"};
        vote.digests = {{.name = "w", .shape = {2}, .lane0 = 5}};
        vote.adapter_config_digest = config_digest;
        return update.handle_vote(std::move(vote), out);
    }
    // Opens a session of an adapter, on both ranks.
    void open_session() {
        messages::UpdateStage order{.update = kUpdate, .new_epoch = Epoch{7}};
        order.spec.source.kind = messages::SourceKind::kBuckets;
        order.spec.adapter = "policy";
        order.spec.adapter_config = "{}";
        order.spec.label = "begun";
        ASSERT_TRUE(update.may_stage(order, std::nullopt, out));
        update.stage(std::move(order), std::nullopt, kStart, out);
        EXPECT_TRUE(filled(0, Rank{0}));
        EXPECT_TRUE(filled(0, Rank{1}));
        EXPECT_EQ(take_parts().size(), 1u);
    }
    void fill(std::int64_t bucket) {
        messages::UpdateFill order{.update = kUpdate, .bucket = bucket};
        order.source.path = "/models/next";
        update.fill(std::move(order), kStart, out);
    }
    bool filled(std::int64_t bucket, Rank rank) {
        messages::WorkerFilled answer{.update = kUpdate, .bucket = bucket};
        answer.outcome = {.rank = rank, .ok = true, .phase = messages::UpdatePhase::kStaging};
        return update.handle_filled(std::move(answer), out);
    }
    bool committed(Rank rank, Epoch epoch = Epoch{2}) {
        return update.handle_committed(
            {.update = kUpdate, .rank = rank, .epoch = epoch}, kStart, out
        );
    }
    std::vector<messages::UpdatePart> take_parts() {
        std::vector<messages::UpdatePart> parts;
        for (const ToTokenizer& message : std::exchange(out.tokenizer, {})) {
            if (const auto* part = std::get_if<messages::UpdatePart>(&message))
                parts.push_back(*part);
        }
        return parts;
    }

    ReplicaUpdate update;
    TurnOutput out{};
};

// P2: two votes of one rank do not replace another rank's vote.
TEST_F(ReplicaUpdateTest, P2_EachRankIsCountedOnceAndOnlyForTheUpdateUnderWay) {
    EXPECT_FALSE(vote(Rank{0})) << "nothing is under way";
    stage();
    EXPECT_FALSE(vote(Rank{0}, /*is_yes=*/true, UpdateId{6})) << "an update that is over";
    EXPECT_FALSE(vote(Rank{2})) << "no such rank";
    EXPECT_TRUE(vote(Rank{0}));
    EXPECT_FALSE(vote(Rank{0}));
    EXPECT_TRUE(take_parts().empty()) << "rank 1 has not voted";
    EXPECT_TRUE(vote(Rank{1}));
    const auto parts = take_parts();
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_TRUE(parts[0].ok);
    EXPECT_EQ(parts[0].state, UpdateState::kStaged);
    EXPECT_EQ(update.weights().version().epoch, Epoch{1}) << "the old version serves";
}

TEST_F(ReplicaUpdateTest, P2_AnAdaptersSessionCountsEachRanksAnswerToItsBucket) {
    open_session();
    fill(1);
    EXPECT_TRUE(filled(1, Rank{0}));
    EXPECT_TRUE(take_parts().empty()) << "rank 1 has not answered";
    EXPECT_TRUE(filled(1, Rank{1}));
    EXPECT_EQ(take_parts().size(), 1u);
    fill(2);
    EXPECT_FALSE(filled(1, Rank{0})) << "the bucket before";
    EXPECT_TRUE(filled(2, Rank{0}));
    EXPECT_TRUE(filled(2, Rank{1}));
    EXPECT_EQ(take_parts().size(), 1u);
    update.finish_session({.update = kUpdate, .label = "last"}, kStart, out);
    vote(Rank{0});
    vote(Rank{1});
    const auto prepared = take_parts();
    ASSERT_EQ(prepared.size(), 1u);
    EXPECT_EQ(prepared[0].label, "last");
    stop();
    ASSERT_TRUE(update.may_commit({.update = kUpdate}, out));
    update.commit(kStart, {}, out);
    take_parts();
    EXPECT_TRUE(committed(Rank{1}, Epoch{7}));
    EXPECT_TRUE(take_parts().empty()) << "rank 0 has not answered";
    EXPECT_TRUE(committed(Rank{0}, Epoch{7}));
    EXPECT_EQ(take_parts().size(), 1u);
}

TEST_F(ReplicaUpdateTest, P2_AnAdaptersSessionIsWhatItsEndDeclares) {
    open_session();
    const std::string other = "00112233445566778899aabbccddeeff";
    update.finish_session({.update = kUpdate, .digest = other}, kStart, out);
    vote(Rank{0});
    vote(Rank{1});
    const auto parts = take_parts();
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_FALSE(parts[0].ok);
    EXPECT_NE(parts[0].verdict.message.find("declared is " + other), std::string::npos);
}

TEST_F(ReplicaUpdateTest, P2_ACommitIsRefusedUntilAllVotedAndTheReplicaStands) {
    stage();
    vote(Rank{0});
    EXPECT_FALSE(update.may_commit({.update = kUpdate}, out));
    vote(Rank{1});
    EXPECT_FALSE(update.may_commit({.update = kUpdate}, out));
    update.make_ready({.update = kUpdate}, kStart, 0, std::nullopt, out);
    EXPECT_FALSE(update.may_commit({.update = kUpdate}, out)) << "it does not stand yet";
    update.advance(kStart, /*is_still=*/false, /*is_run_out=*/false, out);
    EXPECT_FALSE(update.may_commit({.update = UpdateId{6}}, out)) << "another update";
    take_parts();
    EXPECT_TRUE(update.may_commit({.update = kUpdate}, out));
    EXPECT_TRUE(take_parts().empty()) << "what is not refused is answered by the ranks";
}

// P1: plans have the new version as soon as the commit is ordered, before any rank has answered.
TEST_F(ReplicaUpdateTest, P1_TheVersionIsTheNewOneFromTheOrderOnAndAnsweredByTheLastRank) {
    stage();
    vote(Rank{0});
    vote(Rank{1});
    stop();
    update.commit(kStart, {}, out);
    EXPECT_EQ(update.weights().version().epoch, Epoch{2});
    EXPECT_TRUE(update.is_committing());
    update.drop({.update = kUpdate}, out);
    EXPECT_TRUE(update.is_committing()) << "nothing brings the version before it back";
    take_parts();
    EXPECT_TRUE(committed(Rank{1}));
    EXPECT_FALSE(committed(Rank{1}));
    EXPECT_TRUE(take_parts().empty());
    EXPECT_TRUE(committed(Rank{0}));
    const auto parts = take_parts();
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_EQ(parts[0].order, UpdateOrder::kCommit);
    EXPECT_EQ(parts[0].state, UpdateState::kServing);
    EXPECT_EQ(update.under_way(), std::nullopt);
}

TEST_F(ReplicaUpdateTest, AVoteAfterTheFirstNoIsForTheReportAndAnswersNothing) {
    stage();
    EXPECT_TRUE(vote(Rank{1}, /*is_yes=*/false));
    ASSERT_EQ(take_parts().size(), 1u);
    EXPECT_TRUE(vote(Rank{0}));
    EXPECT_TRUE(take_parts().empty());
    update.make_ready({.update = kUpdate}, kStart, 0, std::nullopt, out);
    EXPECT_EQ(take_parts().at(0).verdict.code, ErrorCode::kFailedPrecondition);
}

// The digest of an adapter's tensors says nothing about its scale.
TEST_F(ReplicaUpdateTest, P2_RanksWithDifferentConfigurationsOfAnAdapterPrepareNothing) {
    for (const bool is_same : {false, true}) {
        messages::UpdateStage order{.update = kUpdate, .new_epoch = Epoch{2}};
        order.spec.source.path = "/adapters/policy";
        order.spec.adapter = "policy";
        ASSERT_TRUE(update.may_stage(order, std::nullopt, out));
        update.stage(std::move(order), std::nullopt, kStart, out);
        EXPECT_TRUE(vote(Rank{0}, /*is_yes=*/true, kUpdate, "alpha-16"));
        EXPECT_TRUE(vote(Rank{1}, /*is_yes=*/true, kUpdate, is_same ? "alpha-16" : "alpha-32"));
        const auto parts = take_parts();
        ASSERT_EQ(parts.size(), 1u);
        EXPECT_EQ(parts[0].ok, is_same);
        if (is_same) {
            EXPECT_EQ(parts[0].adapter_config_digest, "alpha-16");
            EXPECT_EQ(update.new_adapter()->config_digest, "alpha-16");
            break;
        }
        EXPECT_EQ(parts[0].verdict.code, ErrorCode::kDataLoss);
        const std::string& why = parts[0].verdict.message;
        EXPECT_NE(why.find("ranks 0 and 1 read different configurations"), std::string::npos);
        EXPECT_NE(why.find("alpha-16 and alpha-32"), std::string::npos) << why;
        update.drop({.update = kUpdate}, out);
        for (const Rank rank : {Rank{0}, Rank{1}})
            EXPECT_TRUE(update.handle_dropped({.update = kUpdate, .rank = rank}, out));
        take_parts();
    }
}

// A trainer may declare its own names of the tensors. The workers know which tensors they mean.
TEST_F(ReplicaUpdateTest, P10_AManifestWithOtherNamesIsComparedByTheResidentOnes) {
    const std::vector<messages::PartDigest> resident{{.name = "w", .shape = {2}, .lane0 = 5}};
    const std::string right = messages::version_digest({{{Rank{0}, resident}}})->tensors[0].digest;
    for (const std::string& digest : {right, std::string(32, 'a')}) {
        messages::UpdateStage order{.update = kUpdate, .new_epoch = Epoch{2}};
        order.spec.source.path = "/models/next";
        order.spec.manifest = {{.name = "module.w", .digest = digest}};
        ASSERT_TRUE(update.may_stage(order, std::nullopt, out));
        update.stage(std::move(order), std::nullopt, kStart, out);
        for (const Rank rank : {Rank{0}, Rank{1}}) {
            messages::WorkerStaged vote{.update = kUpdate};
            vote.outcome = {.rank = rank, .ok = true, .phase = messages::UpdatePhase::kPrepared};
            vote.digests = resident;
            vote.declared = {{"module.w", "w"}};
            EXPECT_TRUE(update.handle_vote(std::move(vote), out));
        }
        const auto parts = take_parts();
        ASSERT_EQ(parts.size(), 1u);
        EXPECT_EQ(parts[0].ok, digest == right) << parts[0].verdict.message;
        if (digest != right) {
            EXPECT_EQ(parts[0].verdict.code, ErrorCode::kDataLoss);
            EXPECT_NE(parts[0].verdict.message.find("module.w: the resident"), std::string::npos);
        }
        update.drop({.update = kUpdate}, out);
        for (const Rank rank : {Rank{0}, Rank{1}})
            EXPECT_TRUE(update.handle_dropped({.update = kUpdate, .rank = rank}, out));
        take_parts();
    }
}

// After a direct stage was ordered, its ranks may have written weights, unless all of them report
// that they had not begun.
TEST_F(ReplicaUpdateTest, P2_ADirectStageThatIsDroppedTearsAndOneThatWasNotOrderedDoesNot) {
    stop();
    EXPECT_TRUE(update.overwrites());
    update.drop({.update = kUpdate}, out);
    EXPECT_FALSE(update.weights().are_torn());
    EXPECT_EQ(take_parts().back().state, UpdateState::kServing);
    stop();
    stage(messages::UpdateMode::kDirect);
    update.drop({.update = kUpdate}, out);
    for (const Rank rank : {Rank{0}, Rank{1}}) {
        take_parts();
        EXPECT_TRUE(update.handle_dropped({.update = kUpdate, .rank = rank}, out));
    }
    EXPECT_TRUE(update.weights().are_torn());
    EXPECT_EQ(take_parts().back().state, UpdateState::kTorn);
}

}  // namespace
}  // namespace pitstop::scheduler
