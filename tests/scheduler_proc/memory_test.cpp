// Release and resume of memory: when it may be, what it takes along, what runs meanwhile.
#include "tests/scheduler_proc/rig.h"

#include <gtest/gtest.h>

namespace pitstop::scheduler {
namespace {

using std::chrono::seconds;

const std::vector<MemoryTag> kKv{MemoryTag::kKvCache};
const std::vector<MemoryTag> kWeights{MemoryTag::kWeights};

class MemoryTest : public testing::Test {
  protected:
    RequestKey start(std::int64_t num_tokens = 20) {
        asks.push_back({.prompt = prompt_of(10), .max_new_tokens = num_tokens});
        const RequestKey key = rig.send(asks.back());
        rig.turn();
        for (int i = 0; i < 5; ++i) rig.step();
        return key;
    }
    MemoryPart release(std::vector<MemoryTag> tags = {}, bool keep_weights = false) {
        rig.control(ReleaseMemory{
            .call = CallId{7}, .tags = std::move(tags), .keep_weights = keep_weights});
        return answer<MemoryPart>();
    }
    MemoryPart resume(std::vector<MemoryTag> tags = {}) {
        rig.control(ResumeMemory{.call = CallId{8}, .tags = std::move(tags)});
        return answer<MemoryPart>();
    }
    PausePart pause(PauseMode mode) {
        rig.control(PauseGeneration{.call = CallId{1}, .mode = mode});
        return answer<PausePart>();
    }
    ContinuePart go_on() {
        rig.control(ContinueGeneration{.call = CallId{2}});
        return answer<ContinuePart>();
    }
    template <class Part>
    Part answer() {
        rig.turn();
        rig.run();
        auto parts = rig.take<Part>();
        EXPECT_EQ(parts.size(), 1u);
        return parts.empty() ? Part{} : parts[0];
    }
    UpdatePart update(bool partial = false) {
        UpdateStage stage{.update = UpdateId{++last_update}};
        stage.spec.source.path = "/models/next";
        stage.spec.partial = partial;
        stage.new_epoch = Epoch{static_cast<std::int64_t>(last_update) + 1};
        rig.control(stage);
        const UpdatePart prepared = answer<UpdatePart>();
        if (!prepared.ok) {
            rig.control(UpdateDrop{.update = stage.update});
            answer<UpdatePart>();
            return prepared;
        }
        rig.control(UpdateReady{.update = stage.update});
        EXPECT_TRUE(answer<UpdatePart>().ok);
        rig.control(UpdateCommit{.update = stage.update});
        return answer<UpdatePart>();
    }
    std::string refusal_of(RequestKey key) {
        rig.run();
        const auto& finish = rig.of(key).finish;
        return finish && finish->reason == FinishReason::kError ? finish->message : "";
    }

    Rig rig{FakeModel{.tp = 2}};
    std::vector<Ask> asks{};
    std::uint64_t last_update = 0;
};

TEST_F(MemoryTest, AnIdleReplicaReleasesAndResumesAndServesAgain) {
    const MemoryPart released = release(kKv);
    EXPECT_EQ(released.code, "");
    ASSERT_EQ(released.tags.size(), 2u);
    EXPECT_EQ(released.tags[0].state, MemoryState::kResident);
    EXPECT_EQ(released.tags[0].resident_bytes, 2000) << "of both ranks";
    EXPECT_EQ(released.tags[1].state, MemoryState::kReleased);
    EXPECT_EQ(released.tags[1].resident_bytes, 0);
    EXPECT_EQ(rig.status().state, "released");
    EXPECT_EQ(resume(kKv).code, "");
    EXPECT_EQ(rig.status().state, "running");
    const RequestKey key = start();
    rig.run();
    EXPECT_EQ(rig.of(key).tokens, rig.expected(asks[0]).tokens);
}

TEST_F(MemoryTest, RequestsAreRefusedWithAClearErrorWhileRunningAndQueuedWhilePaused) {
    release(kKv);
    const RequestKey refused = rig.send({.prompt = prompt_of(4)});
    EXPECT_NE(refusal_of(refused).find("kv_cache is released"), std::string::npos);
    pause(PauseMode::kRetract);
    asks.push_back({.prompt = prompt_of(4)});
    const RequestKey queued = rig.send(asks[0]);
    rig.run();
    EXPECT_FALSE(rig.of(queued).finish);
    const ContinuePart too_early = go_on();
    EXPECT_EQ(too_early.code, "failed_precondition");
    EXPECT_NE(too_early.message.find("kv_cache is released"), std::string::npos);
    EXPECT_EQ(resume().code, "");
    EXPECT_EQ(go_on().code, "");
    rig.run();
    EXPECT_EQ(rig.of(queued).tokens, rig.expected(asks[0]).tokens);
}

// The rule that a continue obeys: what cannot be generated waits, and is not refused (P4).
TEST_F(MemoryTest, P4_APauseThatIsOverDueStaysWhileMemoryIsReleasedAndEndsByItselfThen) {
    const RequestKey key = start();
    rig.control(PauseGeneration{.call = CallId{1}, .mode = PauseMode::kRetract, .max_pause_s = 2.0}
    );
    EXPECT_EQ(answer<PausePart>().num_retracted, 1);
    EXPECT_EQ(release({}, /*keep_weights=*/true).code, "");
    rig.now += seconds(3);
    const TurnOutput over = rig.turn();
    EXPECT_TRUE(rig.scheduler.is_paused());
    EXPECT_TRUE(!over.wake_at || *over.wake_at > rig.now) << "nothing to do until memory is back";
    EXPECT_EQ(
        rig.status().pause_expiry,
        "stays paused: weights is released, kv_cache is released; nothing is generated until it is "
        "resumed"
    );
    const RequestKey late = rig.send({.prompt = prompt_of(5), .max_new_tokens = 3});
    rig.turn();
    EXPECT_FALSE(rig.of(late).finish) << "it waits, as in any pause";
    EXPECT_EQ(resume(kKv).code, "");
    EXPECT_TRUE(rig.scheduler.is_paused()) << "the weights are still missing";
    EXPECT_EQ(resume(kWeights).code, "");
    rig.run();
    EXPECT_FALSE(rig.scheduler.is_paused());
    EXPECT_EQ(rig.status().pause_expiry.rfind("went on by itself after 3.", 0), 0u)
        << rig.status().pause_expiry;
    EXPECT_EQ(rig.of(key).tokens, rig.expected(asks.front()).tokens);
    ASSERT_TRUE(rig.of(late).finish);
    EXPECT_EQ(rig.of(late).finish->reason, FinishReason::kLength);
    pause(PauseMode::kInPlace);
    EXPECT_EQ(rig.status().pause_expiry, "") << "it is about the latest pause";
}

TEST_F(MemoryTest, OpenRequestsStopAReleaseThatNoPauseAnnounced) {
    const RequestKey key = start();
    rig.control(ReleaseMemory{.call = CallId{7}});
    rig.turn();
    const auto parts = rig.take<MemoryPart>();
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_EQ(parts[0].code, "failed_precondition");
    EXPECT_FALSE(parts[0].was_done);
    rig.run();
    EXPECT_EQ(rig.of(key).tokens, rig.expected(asks[0]).tokens) << "nothing has changed";
}

TEST_F(MemoryTest, P4_FrozenRequestsKeepTheirKvAndRetractedOnesLoseNothing) {
    const RequestKey key = start();
    pause(PauseMode::kInPlace);
    const MemoryPart refused = release(kKv);
    EXPECT_EQ(refused.code, "failed_precondition");
    EXPECT_NE(refused.message.find("1 requests hold"), std::string::npos);
    // The weights are another matter: requests hold none of them.
    EXPECT_EQ(release(kWeights, /*keep_weights=*/true).code, "");
    EXPECT_EQ(resume(kWeights).code, "");
    pause(PauseMode::kRetract);
    EXPECT_EQ(release({}, /*keep_weights=*/true).code, "");
    EXPECT_EQ(resume().code, "");
    go_on();
    rig.run();
    EXPECT_EQ(rig.of(key).tokens, rig.expected(asks[0]).tokens);
    EXPECT_EQ(rig.of(key).counts->retractions, 1);
}

TEST_F(MemoryTest, CachedPrefixesGoWithTheKv) {
    start(4);
    rig.run();
    EXPECT_GT(rig.status().pages_cached, 0);
    release(kKv);
    EXPECT_EQ(rig.status().pages_cached, 0);
    EXPECT_EQ(rig.status().pages_free, rig.status().pages_total);
}

TEST_F(MemoryTest, TheWrongStateIsATypedErrorAndChangesNothing) {
    const MemoryPart not_released = resume(kKv);
    EXPECT_EQ(not_released.code, "failed_precondition");
    EXPECT_NE(not_released.message.find("not currently released"), std::string::npos);
    EXPECT_TRUE(not_released.was_done);
    EXPECT_NE(resume().message.find("not currently released"), std::string::npos);
    release(kKv);
    const MemoryPart twice = release(kKv);
    EXPECT_NE(twice.message.find("already released"), std::string::npos);
    EXPECT_TRUE(twice.was_done);
    const MemoryPart half = release({MemoryTag::kWeights, MemoryTag::kKvCache});
    EXPECT_EQ(half.code, "failed_precondition");
    EXPECT_FALSE(half.was_done) << "the weights are still there";
    EXPECT_EQ(half.tags[0].state, MemoryState::kResident);
    EXPECT_EQ(rig.workers.memory_orders().size(), 1u);
    EXPECT_EQ(release().code, "") << "no tags: what is left";
    EXPECT_TRUE(release().was_done);
}

TEST_F(MemoryTest, WithoutWeightsNothingIsGeneratedUntilACompleteUpdate) {
    pause(PauseMode::kRetract);
    EXPECT_EQ(release(kWeights).code, "");
    EXPECT_NE(update().message.find("weights is released"), std::string::npos);
    const MemoryPart back = resume(kWeights);
    EXPECT_EQ(back.code, "");
    EXPECT_FALSE(back.has_weights);
    EXPECT_EQ(rig.status().state, "awaiting_weights");
    EXPECT_EQ(update(/*partial=*/true).code, "failed_precondition");
    // What comes while paused waits; the pause may end before the weights are there.
    asks.push_back({.prompt = prompt_of(4)});
    const RequestKey queued = rig.send(asks[0]);
    rig.run();
    const ContinuePart went_on = go_on();
    EXPECT_EQ(went_on.code, "");
    EXPECT_NE(went_on.message.find("no weights"), std::string::npos);
    const RequestKey refused = rig.send({.prompt = prompt_of(5)});
    EXPECT_NE(refusal_of(refused).find("no weights"), std::string::npos);
    EXPECT_EQ(rig.of(queued).tokens.size(), 0u);
    EXPECT_TRUE(update().ok);
    EXPECT_TRUE(rig.status().has_weights);
    rig.run();
    EXPECT_EQ(rig.of(queued).tokens, rig.expected(asks[0]).tokens);
}

TEST_F(MemoryTest, KeptWeightsServeOnWithoutAnUpdate) {
    release(kWeights, /*keep_weights=*/true);
    const MemoryPart back = resume(kWeights);
    EXPECT_TRUE(back.has_weights);
    const RequestKey key = start();
    rig.run();
    EXPECT_EQ(rig.of(key).tokens, rig.expected(asks[0]).tokens);
}

TEST_F(MemoryTest, AReleaseOfTheWeightsForgetsTheRetainedVersion) {
    EXPECT_TRUE(update().ok);
    release(kWeights, /*keep_weights=*/true);
    resume(kWeights);
    rig.control(UpdateRollback{.update = UpdateId{90}, .new_epoch = Epoch{90}});
    EXPECT_EQ(answer<UpdatePart>().code, "failed_precondition");
}

TEST_F(MemoryTest, WeightsStayWhileAnUpdateIsUnderWay) {
    UpdateStage stage{.update = UpdateId{1}, .new_epoch = Epoch{2}};
    stage.spec.source.path = "/models/next";
    rig.control(stage);
    answer<UpdatePart>();
    EXPECT_NE(release(kWeights).message.find("update 1"), std::string::npos);
    EXPECT_EQ(release(kKv).code, "") << "a stage needs no KV";
}

TEST_F(MemoryTest, ADirectUpdateOfReleasedWeightsTearsNothing) {
    release(kWeights, /*keep_weights=*/true);
    rig.control(UpdateReady{.update = UpdateId{1}});
    EXPECT_EQ(answer<UpdatePart>().code, "failed_precondition");
    EXPECT_FALSE(rig.scheduler.is_torn());
}

TEST_F(MemoryTest, OneRankThatFailsSetsAllBack) {
    release(kKv);
    rig.workers.memory_failures[1] = "no room";
    const MemoryPart failed = resume(kKv);
    EXPECT_EQ(failed.code, "resource_exhausted");
    EXPECT_NE(failed.message.find("rank 1: no room"), std::string::npos);
    EXPECT_EQ(failed.tags[1].state, MemoryState::kReleased);
    EXPECT_EQ(failed.tags[1].resident_bytes, 0) << "rank 0 gave it back";
    EXPECT_EQ(rig.workers.memory_orders().back().action, MemoryAction::kRelease);
    EXPECT_EQ(resume(kKv).code, "") << "later works";
}

TEST_F(MemoryTest, ARankThatCannotEvenGoBackLeavesTheTagReleased) {
    rig.workers.memory_failures[1] = "the kernel says no";
    rig.control(ReleaseMemory{.call = CallId{7}, .tags = kKv});
    rig.turn();
    ASSERT_TRUE(rig.step());
    rig.workers.memory_failures[0] = "no room";
    rig.run();
    EXPECT_NE(rig.take<MemoryPart>().at(0).message.find("rank 1: the kernel"), std::string::npos);
    EXPECT_EQ(rig.status().memory[1].state, MemoryState::kReleased);
    EXPECT_EQ(resume(kKv).code, "");
    start();
    rig.run();
    EXPECT_TRUE(rig.workers.problems().empty());
}

// Found by the simulator (seed 2470 of its day): the way back of the later resume lets go of
// weights that the release had not.
TEST_F(MemoryTest, WeightsThatMayHaveBeenLetGoOnAWayBackDoNotServe) {
    for (auto& failure : rig.workers.memory_failures) failure = "the kernel says no";
    rig.control(ReleaseMemory{.call = CallId{7}, .tags = kWeights});
    rig.turn();
    ASSERT_TRUE(rig.step());
    for (auto& failure : rig.workers.memory_failures) failure = "no room";
    rig.run();
    EXPECT_NE(rig.take<MemoryPart>().at(0).code, "");
    EXPECT_EQ(rig.status().memory[0].state, MemoryState::kReleased);
    rig.workers.memory_failures[0] = "no room";
    EXPECT_EQ(resume(kWeights).code, "resource_exhausted");
    const MemoryPart back = resume(kWeights);
    EXPECT_EQ(back.code, "");
    EXPECT_FALSE(back.has_weights);
}

TEST_F(MemoryTest, P5_ALateRankIsNamedAndTheOrderStands) {
    rig.workers.is_silent[1] = true;
    rig.control(ReleaseMemory{.call = CallId{7}, .timeout_ms = 1000, .tags = kKv});
    const TurnOutput out = rig.turn();
    ASSERT_TRUE(out.wake_at);
    rig.run();
    rig.now += seconds(2);
    rig.turn();
    const auto late = rig.take<MemoryPart>();
    ASSERT_EQ(late.size(), 1u);
    EXPECT_EQ(late[0].code, "deadline_exceeded");
    EXPECT_NE(late[0].message.find("rank 1"), std::string::npos);
    EXPECT_EQ(late[0].message.find("rank 0"), std::string::npos);
    EXPECT_EQ(late[0].tags[1].state, MemoryState::kReleasing);
    TurnInput in;
    in.workers.emplace_back(WorkerMemoryDone{
        .call = rig.workers.memory_orders().back().call, .rank = Rank{1}});
    rig.turn(std::move(in));
    EXPECT_TRUE(rig.take<MemoryPart>().empty()) << "answered once";
    EXPECT_EQ(rig.status().memory[1].state, MemoryState::kReleased);
}

TEST_F(MemoryTest, WhatRanksMeasureUnaskedIsWhatStatusTells) {
    const auto measured = [](int rank, std::int64_t kv_bytes) {
        return WorkerMemoryDone{
            .rank = static_cast<Rank>(rank),
            .tags = {
                {.tag = MemoryTag::kWeights, .resident_bytes = 100},
                {.tag = MemoryTag::kKvCache,
                 .state = MemoryState::kReleased,
                 .resident_bytes = kv_bytes}}};
    };
    TurnInput in;
    for (const int rank : {0, 1, 2, -1}) in.workers.emplace_back(measured(rank, 7));
    rig.turn(std::move(in));
    EXPECT_EQ(rig.status().memory[0].resident_bytes, 200) << "of both ranks, and of no other";
    EXPECT_EQ(rig.status().memory[1].resident_bytes, 14);
    EXPECT_EQ(rig.status().memory[1].state, MemoryState::kResident) << "orders say, nobody else";
    EXPECT_TRUE(rig.take<MemoryPart>().empty()) << "nobody asked";
    release(kKv);
    EXPECT_EQ(rig.status().memory[1].resident_bytes, 0);
}

TEST_F(MemoryTest, AReleaseWaitsForStepsInFlightAndNothingStartsMeanwhile) {
    const RequestKey key = start();
    // Aborted, its steps still in flight: the replica has no open request.
    rig.control(EndRequests{.keys = {key}});
    rig.control(ReleaseMemory{.call = CallId{7}, .tags = kKv});
    rig.turn();
    EXPECT_GT(rig.scheduler.num_in_flight(), 0u);
    EXPECT_TRUE(rig.workers.memory_orders().empty());
    rig.run();
    EXPECT_EQ(rig.take<MemoryPart>().at(0).code, "");
    EXPECT_TRUE(rig.workers.problems().empty());
}

TEST(InitialWeights, AReplicaThatWaitsForThemIsAliveAndRefusesWithAReason) {
    Rig rig{FakeModel{.has_weights = false}};
    rig.turn();
    EXPECT_EQ(rig.status().state, "awaiting_weights");
    const RequestKey key = rig.send({.prompt = prompt_of(4)});
    rig.run();
    ASSERT_TRUE(rig.of(key).finish);
    EXPECT_NE(rig.of(key).finish->message.find("no weights"), std::string::npos);
    EXPECT_TRUE(rig.workers.plans().empty());
}

}  // namespace
}  // namespace pitstop::scheduler
