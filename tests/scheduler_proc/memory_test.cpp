// Release and resume of memory: when they are allowed, what they end, and what runs meanwhile.
#include "tests/scheduler_proc/rig.h"

#include <gtest/gtest.h>

namespace pitstop::scheduler {
namespace {

using std::chrono::seconds;

const std::vector<messages::MemoryTag> kKv{messages::MemoryTag::kKvCache};
const std::vector<messages::MemoryTag> kWeights{messages::MemoryTag::kWeights};

class MemoryTest : public testing::Test {
  protected:
    RequestKey start(std::int64_t num_tokens = 20) {
        asks.push_back({.prompt = prompt_of(10), .max_new_tokens = num_tokens});
        const RequestKey key = rig.send(asks.back());
        rig.turn();
        for (int i = 0; i < 5; ++i) rig.step();
        return key;
    }
    messages::MemoryPart release(
        std::vector<messages::MemoryTag> tags = {}, bool keep_weights = false
    ) {
        rig.control(messages::ReleaseMemory{
            .call = CallId{7}, .tags = std::move(tags), .keep_weights = keep_weights});
        return answer<messages::MemoryPart>();
    }
    messages::MemoryPart resume(std::vector<messages::MemoryTag> tags = {}) {
        rig.control(messages::ResumeMemory{.call = CallId{8}, .tags = std::move(tags)});
        return answer<messages::MemoryPart>();
    }
    messages::PausePart pause(messages::PauseMode mode) {
        rig.control(messages::PauseGeneration{.call = CallId{1}, .mode = mode});
        return answer<messages::PausePart>();
    }
    messages::ContinuePart go_on() {
        rig.control(messages::ContinueGeneration{.call = CallId{2}});
        return answer<messages::ContinuePart>();
    }
    template <class Part>
    Part answer() {
        rig.turn();
        rig.run();
        auto parts = rig.take<Part>();
        EXPECT_EQ(parts.size(), 1u);
        return parts.empty() ? Part{} : parts[0];
    }
    messages::UpdatePart update(bool partial = false) {
        messages::UpdateStage stage{.update = messages::UpdateId{++last_update}};
        stage.spec.source.path = "/models/next";
        stage.spec.partial = partial;
        stage.new_epoch = Epoch{static_cast<std::int64_t>(last_update) + 1};
        rig.control(stage);
        const messages::UpdatePart prepared = answer<messages::UpdatePart>();
        if (!prepared.ok) {
            rig.control(messages::UpdateDrop{.update = stage.update});
            answer<messages::UpdatePart>();
            return prepared;
        }
        rig.control(messages::UpdateReady{.update = stage.update});
        EXPECT_TRUE(answer<messages::UpdatePart>().ok);
        rig.control(messages::UpdateCommit{.update = stage.update});
        return answer<messages::UpdatePart>();
    }
    std::string refusal_of(RequestKey key) {
        rig.run();
        const auto& finish = rig.of(key).finish;
        return finish && finish->reason == messages::FinishReason::kError ? finish->verdict.message
                                                                          : "";
    }

    Rig rig{FakeModel{.tp = 2}};
    std::vector<Ask> asks{};
    std::uint64_t last_update = 0;
};

TEST_F(MemoryTest, AnIdleReplicaReleasesAndResumesAndServesAgain) {
    const messages::MemoryPart released = release(kKv);
    EXPECT_EQ(released.verdict.code, std::nullopt);
    ASSERT_EQ(released.tags.size(), 2u);
    EXPECT_EQ(released.tags[0].state, messages::MemoryState::kResident);
    EXPECT_EQ(released.tags[0].resident_bytes, 2000) << "of both ranks";
    EXPECT_EQ(released.tags[1].state, messages::MemoryState::kReleased);
    EXPECT_EQ(released.tags[1].resident_bytes, 0);
    EXPECT_EQ(rig.status().state, messages::ReplicaState::kReleased);
    EXPECT_EQ(resume(kKv).verdict.code, std::nullopt);
    EXPECT_EQ(rig.status().state, messages::ReplicaState::kRunning);
    const RequestKey key = start();
    rig.run();
    EXPECT_EQ(rig.of(key).tokens, rig.expected(asks[0]).tokens);
}

TEST_F(MemoryTest, RequestsAreRefusedWithAClearErrorWhileRunningAndQueuedWhilePaused) {
    release(kKv);
    const RequestKey refused = rig.send({.prompt = prompt_of(4)});
    EXPECT_NE(refusal_of(refused).find("kv_cache is released"), std::string::npos);
    pause(messages::PauseMode::kRetract);
    asks.push_back({.prompt = prompt_of(4)});
    const RequestKey queued = rig.send(asks[0]);
    rig.run();
    EXPECT_FALSE(rig.of(queued).finish);
    const messages::ContinuePart too_early = go_on();
    EXPECT_EQ(too_early.verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_NE(too_early.verdict.message.find("kv_cache is released"), std::string::npos);
    EXPECT_EQ(resume().verdict.code, std::nullopt);
    EXPECT_EQ(go_on().verdict.code, std::nullopt);
    rig.run();
    EXPECT_EQ(rig.of(queued).tokens, rig.expected(asks[0]).tokens);
}

// The pause's time is up while memory is released: the replica stays paused. After the pause,
// requests that cannot run yet wait and are not refused (P4).
TEST_F(MemoryTest, P4_APauseThatIsOverDueStaysWhileMemoryIsReleasedAndEndsByItselfThen) {
    const RequestKey key = start();
    rig.control(messages::PauseGeneration{
        .call = CallId{1}, .mode = messages::PauseMode::kRetract, .max_pause_s = 2.0});
    EXPECT_EQ(answer<messages::PausePart>().num_retracted, 1);
    EXPECT_EQ(release({}, /*keep_weights=*/true).verdict.code, std::nullopt);
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
    EXPECT_EQ(resume(kKv).verdict.code, std::nullopt);
    EXPECT_TRUE(rig.scheduler.is_paused()) << "the weights are still missing";
    EXPECT_EQ(resume(kWeights).verdict.code, std::nullopt);
    rig.run();
    EXPECT_FALSE(rig.scheduler.is_paused());
    EXPECT_EQ(rig.status().pause_expiry.rfind("continued by itself after 3.", 0), 0u)
        << rig.status().pause_expiry;
    EXPECT_EQ(rig.of(key).tokens, rig.expected(asks.front()).tokens);
    ASSERT_TRUE(rig.of(late).finish);
    EXPECT_EQ(rig.of(late).finish->reason, messages::FinishReason::kLength);
    pause(messages::PauseMode::kInPlace);
    EXPECT_EQ(rig.status().pause_expiry, "") << "it is about the latest pause";
}

TEST_F(MemoryTest, OpenRequestsStopAReleaseThatNoPauseAnnounced) {
    const RequestKey key = start();
    rig.control(messages::ReleaseMemory{.call = CallId{7}});
    rig.turn();
    const auto parts = rig.take<messages::MemoryPart>();
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_EQ(parts[0].verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_FALSE(parts[0].was_done);
    rig.run();
    EXPECT_EQ(rig.of(key).tokens, rig.expected(asks[0]).tokens) << "nothing has changed";
}

TEST_F(MemoryTest, P4_FrozenRequestsKeepTheirKvAndRetractedOnesLoseNothing) {
    const RequestKey key = start();
    pause(messages::PauseMode::kInPlace);
    const messages::MemoryPart refused = release(kKv);
    EXPECT_EQ(refused.verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_NE(refused.verdict.message.find("1 requests hold"), std::string::npos);
    // Weights can be released: requests hold pages only.
    EXPECT_EQ(release(kWeights, /*keep_weights=*/true).verdict.code, std::nullopt);
    EXPECT_EQ(resume(kWeights).verdict.code, std::nullopt);
    pause(messages::PauseMode::kRetract);
    EXPECT_EQ(release({}, /*keep_weights=*/true).verdict.code, std::nullopt);
    EXPECT_EQ(resume().verdict.code, std::nullopt);
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
    const messages::MemoryPart not_released = resume(kKv);
    EXPECT_EQ(not_released.verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_NE(not_released.verdict.message.find("not currently released"), std::string::npos);
    EXPECT_TRUE(not_released.was_done);
    EXPECT_NE(resume().verdict.message.find("not currently released"), std::string::npos);
    release(kKv);
    const messages::MemoryPart twice = release(kKv);
    EXPECT_NE(twice.verdict.message.find("already released"), std::string::npos);
    EXPECT_TRUE(twice.was_done);
    const messages::MemoryPart half =
        release({messages::MemoryTag::kWeights, messages::MemoryTag::kKvCache});
    EXPECT_EQ(half.verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_FALSE(half.was_done) << "the weights are still there";
    EXPECT_EQ(half.tags[0].state, messages::MemoryState::kResident);
    EXPECT_EQ(rig.workers.memory_orders().size(), 1u);
    EXPECT_EQ(release().verdict.code, std::nullopt) << "no tags: what is left";
    EXPECT_TRUE(release().was_done);
}

TEST_F(MemoryTest, WithoutWeightsNothingIsGeneratedUntilACompleteUpdate) {
    pause(messages::PauseMode::kRetract);
    EXPECT_EQ(release(kWeights).verdict.code, std::nullopt);
    EXPECT_NE(update().verdict.message.find("weights is released"), std::string::npos);
    const messages::MemoryPart back = resume(kWeights);
    EXPECT_EQ(back.verdict.code, std::nullopt);
    EXPECT_FALSE(back.has_weights);
    EXPECT_EQ(rig.status().state, messages::ReplicaState::kAwaitingWeights);
    EXPECT_EQ(update(/*partial=*/true).verdict.code, ErrorCode::kFailedPrecondition);
    // Requests that come during a pause wait; the pause may end before the weights are back.
    asks.push_back({.prompt = prompt_of(4)});
    const RequestKey queued = rig.send(asks[0]);
    rig.run();
    const messages::ContinuePart went_on = go_on();
    EXPECT_EQ(went_on.verdict.code, std::nullopt);
    EXPECT_NE(went_on.verdict.message.find("no weights"), std::string::npos);
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
    const messages::MemoryPart back = resume(kWeights);
    EXPECT_TRUE(back.has_weights);
    const RequestKey key = start();
    rig.run();
    EXPECT_EQ(rig.of(key).tokens, rig.expected(asks[0]).tokens);
}

TEST_F(MemoryTest, AReleaseOfTheWeightsForgetsTheRetainedVersion) {
    EXPECT_TRUE(update().ok);
    release(kWeights, /*keep_weights=*/true);
    resume(kWeights);
    rig.control(messages::UpdateRollback{.update = messages::UpdateId{90}, .new_epoch = Epoch{90}});
    EXPECT_EQ(answer<messages::UpdatePart>().verdict.code, ErrorCode::kFailedPrecondition);
}

TEST_F(MemoryTest, WeightsStayWhileAnUpdateIsUnderWay) {
    messages::UpdateStage stage{.update = messages::UpdateId{1}, .new_epoch = Epoch{2}};
    stage.spec.source.path = "/models/next";
    rig.control(stage);
    answer<messages::UpdatePart>();
    EXPECT_NE(release(kWeights).verdict.message.find("update 1"), std::string::npos);
    EXPECT_EQ(release(kKv).verdict.code, std::nullopt) << "a stage needs no KV";
}

TEST_F(MemoryTest, ADirectUpdateOfReleasedWeightsTearsNothing) {
    release(kWeights, /*keep_weights=*/true);
    rig.control(messages::UpdateReady{.update = messages::UpdateId{1}});
    EXPECT_EQ(answer<messages::UpdatePart>().verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_FALSE(rig.scheduler.is_torn());
}

TEST_F(MemoryTest, OneRankThatFailsSetsAllBack) {
    release(kKv);
    rig.workers.memory_failures[1] = "no room";
    const messages::MemoryPart failed = resume(kKv);
    EXPECT_EQ(failed.verdict.code, ErrorCode::kResourceExhausted);
    EXPECT_NE(failed.verdict.message.find("rank 1: no room"), std::string::npos);
    EXPECT_EQ(failed.tags[1].state, messages::MemoryState::kReleased);
    EXPECT_EQ(failed.tags[1].resident_bytes, 0) << "rank 0 gave it back";
    EXPECT_EQ(rig.workers.memory_orders().back().action, messages::MemoryAction::kRelease);
    EXPECT_EQ(resume(kKv).verdict.code, std::nullopt) << "later works";
}

TEST_F(MemoryTest, ARankThatCannotEvenGoBackLeavesTheTagReleased) {
    rig.workers.memory_failures[1] = "the kernel says no";
    rig.control(messages::ReleaseMemory{.call = CallId{7}, .tags = kKv});
    rig.turn();
    ASSERT_TRUE(rig.step());
    rig.workers.memory_failures[0] = "no room";
    rig.run();
    EXPECT_NE(
        rig.take<messages::MemoryPart>().at(0).verdict.message.find("rank 1: the kernel"),
        std::string::npos
    );
    EXPECT_EQ(rig.status().memory[1].state, messages::MemoryState::kReleased);
    EXPECT_EQ(resume(kKv).verdict.code, std::nullopt);
    start();
    rig.run();
    EXPECT_TRUE(rig.workers.problems().empty());
}

// When a resume fails, undoing it may release weights that the failed release had left resident.
TEST_F(MemoryTest, WeightsThatAnUndoneResumeMayHaveReleasedDoNotServe) {
    for (auto& failure : rig.workers.memory_failures) failure = "the kernel says no";
    rig.control(messages::ReleaseMemory{.call = CallId{7}, .tags = kWeights});
    rig.turn();
    ASSERT_TRUE(rig.step());
    for (auto& failure : rig.workers.memory_failures) failure = "no room";
    rig.run();
    EXPECT_NE(rig.take<messages::MemoryPart>().at(0).verdict.code, std::nullopt);
    EXPECT_EQ(rig.status().memory[0].state, messages::MemoryState::kReleased);
    rig.workers.memory_failures[0] = "no room";
    EXPECT_EQ(resume(kWeights).verdict.code, ErrorCode::kResourceExhausted);
    const messages::MemoryPart back = resume(kWeights);
    EXPECT_EQ(back.verdict.code, std::nullopt);
    EXPECT_FALSE(back.has_weights);
}

TEST_F(MemoryTest, P5_ALateRankIsNamedAndTheOrderStands) {
    rig.workers.is_silent[1] = true;
    rig.control(messages::ReleaseMemory{.call = CallId{7}, .timeout_ms = 1000, .tags = kKv});
    const TurnOutput out = rig.turn();
    ASSERT_TRUE(out.wake_at);
    rig.run();
    rig.now += seconds(2);
    rig.turn();
    const auto late = rig.take<messages::MemoryPart>();
    ASSERT_EQ(late.size(), 1u);
    EXPECT_EQ(late[0].verdict.code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(late[0].verdict.message.find("rank 1"), std::string::npos);
    EXPECT_EQ(late[0].verdict.message.find("rank 0"), std::string::npos);
    EXPECT_EQ(late[0].tags[1].state, messages::MemoryState::kReleasing);
    TurnInput in;
    in.workers.emplace_back(messages::WorkerMemoryDone{
        .call = rig.workers.memory_orders().back().call, .rank = Rank{1}});
    rig.turn(std::move(in));
    EXPECT_TRUE(rig.take<messages::MemoryPart>().empty()) << "answered once";
    EXPECT_EQ(rig.status().memory[1].state, messages::MemoryState::kReleased);
}

TEST_F(MemoryTest, StatusTellsWhatRanksMeasureUnasked) {
    const auto measured = [](int rank, std::int64_t kv_bytes) {
        return messages::WorkerMemoryDone{
            .rank = static_cast<Rank>(rank),
            .tags =
                {{.tag = messages::MemoryTag::kWeights, .resident_bytes = 100},
                 {.tag = messages::MemoryTag::kKvCache,
                  .state = messages::MemoryState::kReleased,
                  .resident_bytes = kv_bytes}},
            .graph_bytes = 30 + rank};
    };
    TurnInput in;
    for (const int rank : {0, 1, 2, -1}) in.workers.emplace_back(measured(rank, 7));
    rig.turn(std::move(in));
    EXPECT_EQ(rig.status().memory[0].resident_bytes, 200) << "of both ranks, and of no other";
    EXPECT_EQ(rig.status().memory[1].resident_bytes, 14);
    EXPECT_EQ(rig.status().memory[1].state, messages::MemoryState::kResident)
        << "orders say, nobody else";
    EXPECT_TRUE(rig.take<messages::MemoryPart>().empty()) << "nobody asked";
    release(kKv);
    EXPECT_EQ(rig.status().memory[1].resident_bytes, 0);
    // An order's answer does not include the graphs' memory.
    const std::vector<messages::WorkerStatus> workers = rig.status().workers;
    ASSERT_EQ(workers.size(), 2u);
    for (const int rank : {0, 1}) {
        const messages::WorkerStatus& worker = workers[static_cast<std::size_t>(rank)];
        EXPECT_EQ(worker.graph_bytes, 30 + rank);
        EXPECT_EQ(worker.graph_bytes_max, 500 + rank);
    }
}

TEST_F(MemoryTest, AReleaseWaitsForStepsInFlightAndNothingStartsMeanwhile) {
    const RequestKey key = start();
    // The request is aborted while its steps are in flight, so the replica has no open request.
    rig.control(messages::EndRequests{.keys = {key}});
    rig.control(messages::ReleaseMemory{.call = CallId{7}, .tags = kKv});
    rig.turn();
    EXPECT_GT(rig.scheduler.num_in_flight(), 0u);
    EXPECT_TRUE(rig.workers.memory_orders().empty());
    rig.run();
    EXPECT_EQ(rig.take<messages::MemoryPart>().at(0).verdict.code, std::nullopt);
    EXPECT_TRUE(rig.workers.problems().empty());
}

TEST(InitialWeights, AReplicaThatWaitsForThemIsAliveAndRefusesWithAReason) {
    Rig rig{FakeModel{.has_weights = false}};
    rig.turn();
    EXPECT_EQ(rig.status().state, messages::ReplicaState::kAwaitingWeights);
    const RequestKey key = rig.send({.prompt = prompt_of(4)});
    rig.run();
    ASSERT_TRUE(rig.of(key).finish);
    EXPECT_NE(rig.of(key).finish->verdict.message.find("no weights"), std::string::npos);
    EXPECT_TRUE(rig.workers.plans().empty());
}

}  // namespace
}  // namespace pitstop::scheduler
