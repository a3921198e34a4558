// Facts that combine a scheduler's parts: its state, what may be planned, and what is refused.
#include "scheduler_proc/replica_facts.h"

#include "tests/scheduler_proc/fake_workers.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pitstop::scheduler {
namespace {

using messages::MemoryTag;
using messages::PauseMode;
using messages::ReplicaState;
using messages::UpdateId;
using Scope = Runner::Scope;
using std::chrono::seconds;

constexpr TimePoint kStart{seconds(100)};

class ReplicaFactsTest : public testing::Test {
  protected:
    [[nodiscard]] ReplicaFacts facts() const {
        return {config, workers, runner, pause, update, memory};
    }
    // All ranks have loaded.
    void open(bool has_weights = true) {
        for (FromWorker& message : FakeWorkers({.tp = 2}).hellos())
            ASSERT_TRUE(workers.handle_hello(std::get<messages::WorkerHello>(message), 4));
        runner.open(workers);
        update.open("digest-1", has_weights, /*lends=*/false);
    }
    void send(std::uint64_t key) {
        messages::TokenizedRequest request{.key = RequestKey{key}, .client = {"a"}};
        request.prompt.values.assign(6, TokenId{5});
        request.sampling.max_new_tokens = 4;
        request.sampling.seed = 1;
        runner.enqueue(std::move(request), std::nullopt, out);
    }
    void pause_in(PauseMode mode) { pause.begin({.call = CallId{1}, .mode = mode}, kStart, out); }
    void stage(messages::UpdateMode mode = messages::UpdateMode::kStaged) {
        messages::UpdateStage order{.update = UpdateId{7}, .new_epoch = Epoch{2}};
        order.spec.source.path = "/models/next";
        order.spec.mode = mode;
        if (update.may_stage(order, std::nullopt, out))
            update.stage(std::move(order), std::nullopt, kStart, out);
    }
    // The ranks give this memory back, or take it again.
    void move(messages::MemoryAction action, MemoryTag tag) {
        if (action == messages::MemoryAction::kRelease) {
            ASSERT_FALSE(memory.release({.tags = {tag}}, kStart, std::nullopt));
        } else {
            ASSERT_FALSE(memory.resume({.tags = {tag}}, kStart, std::nullopt));
        }
        memory.advance(/*is_still=*/true, out);
        const auto order = std::get<messages::WorkerMemory>(out.workers.back());
        for (const Rank rank : {Rank{0}, Rank{1}})
            ASSERT_TRUE(memory.handle_done({.call = order.call, .rank = rank}));
        memory.advance(/*is_still=*/true, out);
    }
    static std::string text_of(const std::optional<Error>& error) {
        return error ? error->message : "";
    }

    SchedulerConfig config{.replica = ReplicaId{3}, .tp = 2, .page_size = 4};
    Workers workers{2};
    Runner runner{config};
    Pause pause{config.replica};
    ReplicaUpdate update{config};
    ReplicaMemory memory{config.replica, 2};
    TurnOutput out{};
};

TEST_F(ReplicaFactsTest, UntilAllRanksHaveLoadedNothingIsTaken) {
    EXPECT_EQ(facts().state(), ReplicaState::kLoading);
    EXPECT_EQ(facts().scope(), Scope::kNothing);
    const std::string why = "replica 3 is loading; waiting for rank 0, rank 1";
    EXPECT_EQ(text_of(facts().why_not_ready()), why);
    EXPECT_EQ(text_of(facts().why_unreadable()), why);
    EXPECT_EQ(text_of(facts().why_no_label()), why);
    EXPECT_EQ(text_of(facts().why_no_release({})), why);
    EXPECT_EQ(text_of(facts().why_no_resume()), why);
    EXPECT_EQ(facts().why_no_update(), "still loading");
    open();
    EXPECT_EQ(facts().state(), ReplicaState::kRunning);
    EXPECT_EQ(facts().scope(), Scope::kEverything);
    EXPECT_EQ(text_of(facts().why_not_ready()), "");
    EXPECT_EQ(facts().why_no_update(), std::nullopt);
}

TEST_F(ReplicaFactsTest, WithoutWeightsNothingRunsAndAPauseMayEnd) {
    open(/*has_weights=*/false);
    EXPECT_EQ(facts().state(), ReplicaState::kAwaitingWeights);
    EXPECT_EQ(facts().scope(), Scope::kNothing);
    EXPECT_NE(text_of(facts().why_idle()).find("none have arrived"), std::string::npos);
    EXPECT_EQ(text_of(facts().why_not_on()), "") << "open requests continue with the weights";
    EXPECT_NE(text_of(facts().why_unreadable()), "");
    EXPECT_NE(text_of(facts().why_no_label()), "");
    EXPECT_FALSE(facts().standing().has_weights);
    EXPECT_EQ(facts().why_no_update(), std::nullopt) << "an update brings weights";
}

// P2: torn weights generate nothing, and may be looked at.
TEST_F(ReplicaFactsTest, P2_TornWeightsAreReadAndNotRun) {
    open();
    update.weights().tear();
    EXPECT_EQ(facts().state(), ReplicaState::kTorn);
    EXPECT_EQ(facts().scope(), Scope::kNothing);
    EXPECT_NE(text_of(facts().why_not_on()).find("torn"), std::string::npos);
    EXPECT_EQ(text_of(facts().why_unreadable()), "");
    pause_in(PauseMode::kInPlace);
    EXPECT_EQ(facts().state(), ReplicaState::kTorn) << "a pause does not hide it";
}

TEST_F(ReplicaFactsTest, ReleasedMemoryIsNamedAndStopsWhatNeedsIt) {
    open();
    move(messages::MemoryAction::kRelease, MemoryTag::kKvCache);
    EXPECT_EQ(facts().state(), ReplicaState::kReleased);
    EXPECT_EQ(facts().scope(), Scope::kNothing);
    EXPECT_EQ(facts().standing().released, std::vector<MemoryTag>{MemoryTag::kKvCache});
    EXPECT_NE(text_of(facts().why_not_on()).find("kv_cache"), std::string::npos);
    EXPECT_EQ(text_of(facts().why_unreadable()), "") << "the weights are there";
    EXPECT_EQ(facts().why_no_update(), std::nullopt);
    move(messages::MemoryAction::kRelease, MemoryTag::kWeights);
    EXPECT_NE(text_of(facts().why_unreadable()), "");
    EXPECT_NE(facts().why_no_update().value_or("").find("weights"), std::string::npos);
    move(messages::MemoryAction::kResume, MemoryTag::kWeights);
    move(messages::MemoryAction::kResume, MemoryTag::kKvCache);
    EXPECT_EQ(facts().state(), ReplicaState::kRunning);
    EXPECT_TRUE(facts().standing().released.empty());
}

TEST_F(ReplicaFactsTest, P4_APauseLetsRunningRequestsEndOrNothingRun) {
    open();
    pause_in(PauseMode::kWait);
    EXPECT_EQ(facts().state(), ReplicaState::kPausing);
    EXPECT_EQ(facts().scope(), Scope::kStarted);
    EXPECT_TRUE(facts().standing().is_paused);
    EXPECT_EQ(
        text_of(facts().why_no_release({MemoryTag::kWeights})),
        "a pause is still waiting for running requests to end"
    );
    pause.advance({.is_still = true, .is_run_out = true}, kStart, out);
    EXPECT_EQ(facts().state(), ReplicaState::kPaused);
    EXPECT_EQ(facts().scope(), Scope::kNothing);
    EXPECT_EQ(text_of(facts().why_no_release({MemoryTag::kWeights})), "");
    EXPECT_EQ(facts().status(kStart).output_tokens_per_s, 0);
    EXPECT_EQ(facts().status(kStart).state, ReplicaState::kPaused);
    EXPECT_EQ(facts().status(kStart).digest, "digest-1");
}

TEST_F(ReplicaFactsTest, OpenRequestsKeepMemoryUntilAPause) {
    open();
    send(1);
    EXPECT_NE(
        text_of(facts().why_no_release({MemoryTag::kWeights})).find("1 requests are open"),
        std::string::npos
    );
    pause_in(PauseMode::kInPlace);
    EXPECT_EQ(text_of(facts().why_no_release({MemoryTag::kWeights})), "");
}

TEST_F(ReplicaFactsTest, AnUpdateKeepsTheWeightsAndTheLabel) {
    open();
    stage();
    EXPECT_EQ(facts().state(), ReplicaState::kRunning) << "requests run while it is staged";
    EXPECT_EQ(facts().scope(), Scope::kEverything);
    EXPECT_EQ(
        text_of(facts().why_no_label()), "update 7 is under way and sets its own label; wait for it"
    );
    EXPECT_EQ(
        text_of(facts().why_no_release({MemoryTag::kWeights})),
        "update 7 is under way; wait for it, or drop its stage"
    );
    EXPECT_EQ(text_of(facts().why_no_release({MemoryTag::kKvCache})), "");
}

TEST_F(ReplicaFactsTest, P2_WhatADirectUpdateOverwritesDoesNotRun) {
    open();
    update.make_ready({.update = UpdateId{7}}, kStart, 0, std::nullopt, out);
    update.advance(kStart, /*is_still=*/true, /*is_run_out=*/true, out);
    stage(messages::UpdateMode::kDirect);
    EXPECT_EQ(facts().state(), ReplicaState::kUpdating);
    EXPECT_EQ(facts().scope(), Scope::kNothing);
}

TEST_F(ReplicaFactsTest, LentMemoryIsNotReleasedAndNotResumed) {
    open();
    memory.lend();
    memory.advance(/*is_still=*/true, out);
    const auto order = std::get<messages::WorkerMemory>(out.workers.back());
    for (const Rank rank : {Rank{0}, Rank{1}})
        ASSERT_TRUE(memory.handle_done({.call = order.call, .rank = rank}));
    memory.advance(/*is_still=*/true, out);
    EXPECT_TRUE(facts().standing().released.empty());
    EXPECT_EQ(facts().state(), ReplicaState::kRunning);
    EXPECT_EQ(facts().scope(), Scope::kNothing) << "there is no KV";
    EXPECT_NE(text_of(facts().why_no_resume()).find("is lent to an update"), std::string::npos);
}

}  // namespace
}  // namespace pitstop::scheduler
