// --update-mode lend: the KV cache lends its memory to a staged update, and gets it back. The fake
// workers report a stage that begins while KV has the memory, and a step while it does not.
#include "tests/scheduler_proc/update_fixture.h"

#include <string>
#include <utility>
#include <vector>

namespace pitstop::scheduler {
namespace {

using messages::KvPolicy;
using messages::MemoryAction;
using messages::UpdateMode;

class LoanTest : public UpdateTest {
  protected:
    LoanTest() { rig = Rig{{.tp = 2, .num_pages = 128, .lends = true}}; }

    std::vector<MemoryAction> actions() const {
        std::vector<MemoryAction> all;
        for (const messages::WorkerMemory& given : rig.workers.memory_orders())
            all.push_back(given.action);
        return all;
    }
    messages::MemoryState kv_state() const {
        for (const messages::TagMemory& tag : rig.status().memory) {
            if (tag.tag == messages::MemoryTag::kKvCache) return tag.state;
        }
        return messages::MemoryState::kReleased;
    }
    void expect_nothing_lost() {
        rig.run();
        EXPECT_EQ(rig.status().state, messages::ReplicaState::kRunning);
        EXPECT_EQ(kv_state(), messages::MemoryState::kResident);
        for (std::size_t i = 0; i < keys.size(); ++i)
            EXPECT_EQ(rig.of(keys[i]).tokens, rig.expected(asks[i]).tokens) << i;
        EXPECT_TRUE(rig.workers.problems().empty()) << rig.workers.problems().front();
    }
    const std::vector<MemoryAction> kThereAndBack{MemoryAction::kRelease, MemoryAction::kResume};
};

TEST_F(LoanTest, P1_P4_KvIsLentFromTheStageToTheCommitAndEveryRequestGoesOn) {
    for (const KvPolicy policy : {KvPolicy::kKeep, KvPolicy::kRecompute, KvPolicy::kDrain}) {
        SCOPED_TRACE(std::string(name_of(policy)));
        rig = Rig{{.tp = 2, .num_pages = 128, .lends = true}};
        asks.clear(), keys.clear();
        start_requests();
        const messages::UpdatePart done = update(UpdateMode::kStaged, policy, Epoch{2});
        EXPECT_TRUE(done.ok);
        EXPECT_EQ(done.outcome.num_kept, 0);
        EXPECT_EQ(done.outcome.num_recomputed, policy == KvPolicy::kDrain ? 0 : 3);
        EXPECT_EQ(done.outcome.num_drained, policy == KvPolicy::kDrain ? 3 : 0);
        expect_nothing_lost();
        EXPECT_EQ(actions(), kThereAndBack);
        const auto tokens = tokens_by_epoch(rig.of(keys[0]));
        EXPECT_EQ(tokens.contains(Epoch{2}), policy != KvPolicy::kDrain);
    }
}

TEST_F(LoanTest, RequestsThatComeMeanwhileWaitAndAreNotRefused) {
    order_stage(spec_of(UpdateMode::kStaged, KvPolicy::kKeep));
    ASSERT_TRUE(answer().ok);
    EXPECT_EQ(rig.status().state, messages::ReplicaState::kUpdating);
    EXPECT_EQ(kv_state(), messages::MemoryState::kReleased);
    start_requests();
    EXPECT_FALSE(rig.of(keys[0]).finish);
    EXPECT_EQ(rig.status().num_waiting, 3);
    order(messages::UpdateReady{.update = kUpdate, .kv_policy = KvPolicy::kKeep});
    EXPECT_TRUE(answer().ok);
    order(messages::UpdateCommit{.update = kUpdate});
    EXPECT_TRUE(answer().ok);
    expect_nothing_lost();
    EXPECT_EQ(tokens_by_epoch(rig.of(keys[0])).count(Epoch{1}), 0u);
}

TEST_F(LoanTest, P2_AnUpdateThatFailsGivesTheKvBackAndTheOldVersionGoesOn) {
    start_requests();
    rig.workers.stage_failures[1] = "shard 2 is truncated";
    order_stage(spec_of(UpdateMode::kStaged, KvPolicy::kKeep));
    EXPECT_FALSE(answer().ok);
    order(messages::UpdateDrop{.update = kUpdate});
    EXPECT_EQ(answer().state, messages::UpdateState::kServing);
    expect_nothing_lost();
    EXPECT_EQ(actions(), kThereAndBack);
    EXPECT_EQ(rig.status().epoch, Epoch{1});
}

TEST_F(LoanTest, P2_ADropAtAnyTimeGivesTheKvBack) {
    for (int num_turns = 0; num_turns < 12; ++num_turns) {
        SCOPED_TRACE(num_turns);
        rig = Rig{{.tp = 2, .num_pages = 128, .lends = true}};
        asks.clear(), keys.clear();
        start_requests();
        rig.control(messages::UpdateStage{
            .update = kUpdate,
            .spec = spec_of(UpdateMode::kStaged, KvPolicy::kKeep),
            .new_epoch = Epoch{2}});
        rig.turn();
        for (int i = 0; i < num_turns; ++i) rig.step();
        rig.control(messages::UpdateDrop{.update = kUpdate});
        rig.turn();
        rig.run();
        expect_nothing_lost();
        rig.take<messages::UpdatePart>();
        const messages::UpdatePart done =
            update(UpdateMode::kStaged, KvPolicy::kKeep, Epoch{2}, messages::UpdateId{2});
        EXPECT_TRUE(done.ok);
        expect_nothing_lost();
    }
}

TEST_F(LoanTest, ARankThatCannotLendFailsTheUpdateAndNothingElse) {
    start_requests();
    rig.workers.memory_failures[1] = "the driver says no";
    order_stage(spec_of(UpdateMode::kStaged, KvPolicy::kKeep));
    const messages::UpdatePart refused = answer();
    EXPECT_FALSE(refused.ok);
    EXPECT_NE(refused.verdict.message.find("the driver says no"), std::string::npos);
    order(messages::UpdateDrop{.update = kUpdate});
    EXPECT_TRUE(answer().ok);
    expect_nothing_lost();
}

TEST_F(LoanTest, KvThatDoesNotComeBackIsReleasedAndSaysWhyUntilItIsResumed) {
    start_requests();
    order_stage(spec_of(UpdateMode::kStaged, KvPolicy::kKeep));
    ASSERT_TRUE(answer().ok);
    order(messages::UpdateReady{.update = kUpdate, .kv_policy = KvPolicy::kKeep});
    ASSERT_TRUE(answer().ok);
    rig.workers.memory_failures[0] = "no room for kv_cache";
    order(messages::UpdateCommit{.update = kUpdate});
    EXPECT_TRUE(answer().ok) << "the weights are in effect";
    rig.run();
    EXPECT_EQ(rig.status().state, messages::ReplicaState::kReleased);
    EXPECT_EQ(rig.status().epoch, Epoch{2});
    const RequestKey refused = rig.send({.prompt = prompt_of(3)});
    rig.turn();
    ASSERT_TRUE(rig.of(refused).finish);
    const std::string why = rig.of(refused).finish->verdict.message;
    EXPECT_NE(why.find("lent to an update"), std::string::npos) << why;
    EXPECT_NE(why.find("no room for kv_cache"), std::string::npos) << why;
    rig.control(messages::ResumeMemory{.call = CallId{8}});
    rig.turn();
    rig.run();
    EXPECT_TRUE(rig.take<messages::MemoryPart>().at(0).verdict.is_done());
    expect_nothing_lost();
}

TEST_F(LoanTest, KvThatWasReleasedBeforeIsNobodysToLendOrToGiveBack) {
    rig.control(messages::ReleaseMemory{.call = CallId{7}, .tags = {messages::MemoryTag::kKvCache}}
    );
    rig.turn();
    rig.run();
    EXPECT_TRUE(update(UpdateMode::kStaged, KvPolicy::kKeep, Epoch{2}).ok);
    rig.run();
    EXPECT_EQ(kv_state(), messages::MemoryState::kReleased);
    EXPECT_EQ(rig.status().state, messages::ReplicaState::kReleased);
    EXPECT_EQ(actions(), std::vector{MemoryAction::kRelease});
}

TEST_F(LoanTest, NobodyElseTakesOrGivesMemoryThatIsLent) {
    order_stage(spec_of(UpdateMode::kStaged, KvPolicy::kKeep));
    ASSERT_TRUE(answer().ok);
    rig.control(messages::ResumeMemory{.call = CallId{8}});
    rig.turn();
    const auto resumed = rig.take<messages::MemoryPart>();
    EXPECT_EQ(resumed.at(0).verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_NE(resumed.at(0).verdict.message.find("lent to an update"), std::string::npos);
    rig.control(messages::ReleaseMemory{.call = CallId{9}, .tags = {messages::MemoryTag::kKvCache}}
    );
    rig.turn();
    EXPECT_EQ(rig.take<messages::MemoryPart>().at(0).verdict.code, ErrorCode::kFailedPrecondition);
    order(messages::UpdateDrop{.update = kUpdate});
    EXPECT_TRUE(answer().ok);
    expect_nothing_lost();
}

TEST_F(LoanTest, NothingIsRetainedAndADirectUpdateLendsNothing) {
    EXPECT_TRUE(update(UpdateMode::kStaged, KvPolicy::kKeep, Epoch{2}).ok);
    order(messages::UpdateRollback{.update = messages::UpdateId{4}, .new_epoch = Epoch{5}});
    EXPECT_NE(answer().verdict.message.find("no previous version"), std::string::npos);
    rig.run();
    const std::size_t num_before = actions().size();
    EXPECT_TRUE(update(UpdateMode::kDirect, KvPolicy::kKeep, Epoch{3}, messages::UpdateId{5}).ok);
    EXPECT_EQ(actions().size(), num_before);
}

TEST_F(LoanTest, P5_ADrainThatCannotBeIsRefusedAndOneThatTakesTooLongIsLate) {
    start_requests();
    rig.control(messages::PauseGeneration{.call = CallId{1}, .mode = messages::PauseMode::kInPlace}
    );
    rig.turn();
    rig.run();
    order_stage(spec_of(UpdateMode::kStaged, KvPolicy::kDrain));
    EXPECT_NE(answer().verdict.message.find("cannot finish"), std::string::npos);
    order(messages::UpdateDrop{.update = kUpdate});
    EXPECT_TRUE(answer().ok);
    rig.control(messages::ContinueGeneration{.call = CallId{2}});
    rig.turn();
    expect_nothing_lost();
}

}  // namespace
}  // namespace pitstop::scheduler
