// This replica's part of weight updates: votes, commits at a step boundary, KV policies, drops,
// rollback, the torn state. The door's part is tested with tokenizer_proc.
#include "tests/scheduler_proc/update_fixture.h"

#include <algorithm>

namespace pitstop::scheduler {
namespace {

TEST_F(UpdateTest, P4_SameWeightsLeaveTheOutputBitIdenticalInEveryCombination) {
    for (const messages::UpdateMode mode :
         {messages::UpdateMode::kStaged, messages::UpdateMode::kDirect}) {
        for (const messages::KvPolicy policy :
             {messages::KvPolicy::kKeep,
              messages::KvPolicy::kRecompute,
              messages::KvPolicy::kDrain,
              messages::KvPolicy::kAbort}) {
            SCOPED_TRACE(testing::Message() << name_of(mode) << " " << name_of(policy));
            Rig fresh({.tp = 2, .num_pages = 128}, {.running_max = 3});
            std::swap(rig, fresh);
            asks.clear();
            keys.clear();
            start_requests(4);
            ASSERT_EQ(rig.status().num_running, 3);
            const messages::UpdatePart done = update(mode, policy, Epoch{2});
            EXPECT_TRUE(done.ok);
            EXPECT_EQ(done.epoch, Epoch{2});
            EXPECT_EQ(done.label, "step-2");
            EXPECT_EQ(done.state, messages::UpdateState::kServing);
            EXPECT_EQ(done.outcome.ranks.size(), 2u);
            EXPECT_EQ(done.outcome.ranks[1].phase, messages::UpdatePhase::kCommitted);
            EXPECT_EQ(done.outcome.num_kept, policy == messages::KvPolicy::kKeep ? 3 : 0);
            EXPECT_EQ(
                done.outcome.num_recomputed, policy == messages::KvPolicy::kRecompute ? 3 : 0
            );
            EXPECT_EQ(done.outcome.num_drained, policy == messages::KvPolicy::kDrain ? 3 : 0);
            EXPECT_EQ(done.outcome.num_aborted, policy == messages::KvPolicy::kAbort ? 3 : 0);
            rig.run();
            EXPECT_EQ(rig.scheduler.num_open(), 0);
            for (std::size_t i = 0; i < keys.size(); ++i) {
                const Received& got = rig.of(keys[i]);
                const auto want = rig.expected(asks[i]).tokens;
                ASSERT_TRUE(got.finish);
                const bool was_running = i < 3;
                if (was_running && policy == messages::KvPolicy::kAbort) {
                    EXPECT_EQ(got.finish->reason, messages::FinishReason::kAbort);
                    EXPECT_TRUE(std::equal(got.tokens.begin(), got.tokens.end(), want.begin()));
                    continue;
                }
                EXPECT_EQ(got.tokens, want);
                const auto by_epoch = tokens_by_epoch(got);
                if (!was_running) {
                    EXPECT_EQ(by_epoch, (std::map<Epoch, std::int64_t>{{Epoch{2}, 24}}));
                } else if (policy == messages::KvPolicy::kDrain) {
                    EXPECT_EQ(by_epoch, (std::map<Epoch, std::int64_t>{{Epoch{1}, 24}}));
                } else {
                    EXPECT_EQ(by_epoch.size(), 2u);
                    const messages::Span& last = got.spans.back();
                    EXPECT_EQ(last.epoch, Epoch{2});
                    EXPECT_EQ(last.label, "step-2");
                    EXPECT_EQ(
                        last.kv_min_epoch, Epoch{policy == messages::KvPolicy::kKeep ? 1 : 2}
                    );
                    EXPECT_EQ(last.kv_max_epoch, Epoch{2});
                }
            }
        }
    }
}

TEST_F(UpdateTest, P1_TheCommitLiesBetweenTwoPlansAndGenerationNeverStops) {
    start_requests();
    order_stage(spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep));
    ASSERT_TRUE(answer().ok);
    order(messages::UpdateReady{.update = kUpdate, .kv_policy = messages::KvPolicy::kKeep});
    ASSERT_TRUE(answer().ok);
    EXPECT_EQ(rig.status().state, messages::ReplicaState::kRunning);
    ASSERT_EQ(rig.scheduler.num_in_flight(), 2u);
    rig.control(messages::UpdateCommit{.update = kUpdate});
    TurnOutput out = rig.turn();
    ASSERT_EQ(out.workers.size(), 1u) << "two steps are in flight, the commit queues behind them";
    EXPECT_TRUE(std::holds_alternative<messages::WorkerCommit>(out.workers[0]));
    EXPECT_EQ(rig.scheduler.version().epoch, Epoch{2});
    rig.run();  // the fake workers check each plan's epoch against the live one
    std::vector<Epoch> epochs;
    for (const messages::StepPlan& plan : rig.workers.plans()) epochs.push_back(plan.epoch);
    EXPECT_TRUE(std::ranges::is_sorted(epochs));
    EXPECT_EQ(epochs.back(), Epoch{2});
}

TEST_F(UpdateTest, TheAnswerSaysWhatStagingCostTheStreams) {
    start_requests();  // six steps
    // Workers receive the stage after the two steps in flight.
    order_stage(spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep));
    const messages::UpdatePart staged = answer();
    ASSERT_TRUE(staged.ok) << staged.verdict.message;
    EXPECT_EQ(staged.outcome.num_steps, 2);
    EXPECT_GT(staged.outcome.step_s, 0);
    EXPECT_GT(staged.outcome.step_s_before, 0);
    EXPECT_GE(staged.outcome.gap_s, staged.outcome.step_s);
    const std::int64_t num_steps = staged.outcome.num_steps;
    for (int i = 0; i < 3; ++i) rig.step();
    order(messages::UpdateReady{.update = kUpdate, .kv_policy = messages::KvPolicy::kKeep});
    ASSERT_TRUE(answer().ok);
    order(messages::UpdateCommit{.update = kUpdate});
    EXPECT_EQ(answer().outcome.num_steps, num_steps)
        << "what came after the vote is not the stage's";
}

TEST_F(UpdateTest, NewWeightsSpeakFromTheCommitOn) {
    start_requests(1);
    rig.workers.staged_weights = kNewWeights;
    update(messages::UpdateMode::kStaged, messages::KvPolicy::kRecompute, Epoch{2});
    rig.run();
    const Received& got = rig.of(keys[0]);
    const auto num_old = static_cast<std::size_t>(tokens_by_epoch(got)[Epoch{1}]);
    // The old model's output, then the new model's continuation of prompt and old output.
    FakeModel old_model = rig.workers.model();
    old_model.weights = 0;
    FakeModel new_model = old_model;
    new_model.weights = kNewWeights;
    std::vector<TokenId> context = asks[0].prompt;
    for (std::size_t i = 0; i < got.tokens.size(); ++i) {
        const FakeModel& model = i < num_old ? old_model : new_model;
        const auto index = static_cast<std::int64_t>(i);
        EXPECT_EQ(got.tokens[i], fake_next_token(model, context, {}, {}, index)) << i;
        context.push_back(got.tokens[i]);
    }
    EXPECT_EQ(got.spans.front().label, "");
    EXPECT_NE(got.spans.front().digest, got.spans.back().digest);
}

TEST_F(UpdateTest, P9_NoStalePrefixIsSharedAfterACommit) {
    const Ask ask{.prompt = prompt_of(20), .max_new_tokens = 2};
    rig.send(ask);
    rig.run();
    update(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep, Epoch{2});
    Ask tolerant = ask;
    tolerant.kv_tolerance = messages::KvTolerance::kKeep;
    const RequestKey keeps = rig.send(tolerant);
    rig.run();
    const RequestKey strict = rig.send(ask);
    rig.run();
    const RequestKey again = rig.send(ask);
    rig.run();
    EXPECT_EQ(rig.of(keeps).counts->cached_tokens, 16);
    EXPECT_EQ(rig.of(keeps).spans[0].kv_min_epoch, Epoch{1});
    EXPECT_EQ(rig.of(strict).counts->cached_tokens, 0);
    EXPECT_EQ(rig.of(strict).spans[0].kv_min_epoch, Epoch{2});
    EXPECT_EQ(rig.of(again).counts->cached_tokens, 16);
    EXPECT_EQ(rig.of(again).spans[0].kv_min_epoch, Epoch{2});
}

TEST_F(UpdateTest, P9_MaxLagCountsEpochs) {
    const Ask ask{.prompt = prompt_of(20), .max_new_tokens = 2};
    rig.send(ask);
    rig.run();
    update(
        messages::UpdateMode::kStaged, messages::KvPolicy::kKeep, Epoch{2}, messages::UpdateId{1}
    );
    update(
        messages::UpdateMode::kStaged, messages::KvPolicy::kKeep, Epoch{3}, messages::UpdateId{2}
    );
    Ask one = ask;
    one.kv_tolerance = messages::KvTolerance::kMaxLag;
    one.kv_max_lag = 1;
    Ask two = one;
    two.kv_max_lag = 2;
    const RequestKey far = rig.send(two);
    rig.run();
    const RequestKey near = rig.send(one);
    rig.run();
    EXPECT_EQ(rig.of(far).counts->cached_tokens, 16);
    EXPECT_EQ(rig.of(near).counts->cached_tokens, 0);
}

TEST_F(UpdateTest, RecomputeGivesNewKvEvenToARequestThatWouldTolerateOld) {
    asks.push_back({.prompt = prompt_of(12), .max_new_tokens = 24});
    asks[0].kv_tolerance = messages::KvTolerance::kKeep;
    keys.push_back(rig.send(asks[0]));
    rig.turn();
    for (int i = 0; i < 6; ++i) rig.step();
    update(messages::UpdateMode::kStaged, messages::KvPolicy::kRecompute, Epoch{2});
    rig.run();
    EXPECT_EQ(rig.of(keys[0]).spans.back().kv_min_epoch, Epoch{2});
}

TEST_F(UpdateTest, DrainStartsNoNewRequestUntilTheCommit) {
    start_requests();
    order_stage(spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kDrain));
    ASSERT_TRUE(answer().ok);
    order(messages::UpdateReady{.update = kUpdate, .kv_policy = messages::KvPolicy::kDrain});
    const RequestKey later = rig.send({.prompt = prompt_of(4, 300), .max_new_tokens = 3});
    const messages::UpdatePart ready = answer();
    EXPECT_TRUE(ready.ok);
    for (const RequestKey key : keys) EXPECT_TRUE(rig.of(key).finish);
    EXPECT_EQ(rig.of(later).num_chunks, 0);
    EXPECT_EQ(rig.status().state, messages::ReplicaState::kUpdating);
    EXPECT_FALSE(rig.step());
    order(messages::UpdateCommit{.update = kUpdate});
    EXPECT_TRUE(answer().ok);
    rig.run();
    EXPECT_EQ(rig.of(later).spans[0].epoch, Epoch{2});
}

TEST_F(UpdateTest, DrainIsRefusedWhereRequestsAreFrozen) {
    start_requests();
    rig.control(messages::PauseGeneration{.call = CallId{1}, .mode = messages::PauseMode::kInPlace}
    );
    rig.run();
    order(messages::UpdateReady{.update = kUpdate, .kv_policy = messages::KvPolicy::kDrain});
    const messages::UpdatePart part = answer();
    EXPECT_FALSE(part.ok);
    EXPECT_EQ(part.verdict.code, ErrorCode::kFailedPrecondition);
}

TEST_F(UpdateTest, WorksWhilePausedInEveryMode) {
    for (const messages::PauseMode mode :
         {messages::PauseMode::kInPlace, messages::PauseMode::kRetract}) {
        for (const messages::UpdateMode how :
             {messages::UpdateMode::kStaged, messages::UpdateMode::kDirect}) {
            for (const messages::KvPolicy policy :
                 {messages::KvPolicy::kKeep, messages::KvPolicy::kRecompute}) {
                Rig fresh({.tp = 2, .num_pages = 128});
                std::swap(rig, fresh);
                asks.clear();
                keys.clear();
                start_requests();
                rig.control(messages::PauseGeneration{.call = CallId{1}, .mode = mode});
                rig.run();
                update(how, policy, Epoch{2});
                EXPECT_TRUE(rig.scheduler.is_paused());
                rig.control(messages::ContinueGeneration{.call = CallId{2}});
                rig.run();
                for (std::size_t i = 0; i < keys.size(); ++i)
                    EXPECT_EQ(rig.of(keys[i]).tokens, rig.expected(asks[i]).tokens);
            }
        }
    }
}

// ---- rollback ----

TEST_F(UpdateTest, P2_RollbackReturnsToThePreviousVersion) {
    const Version first = rig.scheduler.version();
    rig.workers.staged_weights = kNewWeights;
    update(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep, Epoch{2});
    const std::string second_digest = rig.scheduler.version().digest;
    EXPECT_NE(second_digest, first.digest);
    start_requests();
    const messages::UpdateId id{2};
    order(messages::UpdateRollback{.update = id, .new_epoch = Epoch{3}});
    const messages::UpdatePart prepared = answer();
    EXPECT_TRUE(prepared.ok);
    EXPECT_EQ(prepared.digest, first.digest);
    EXPECT_EQ(prepared.label, first.label);
    order(messages::UpdateReady{.update = id, .kv_policy = messages::KvPolicy::kRecompute});
    EXPECT_TRUE(answer().ok);
    order(messages::UpdateCommit{.update = id});
    EXPECT_TRUE(answer().ok);
    EXPECT_EQ(rig.scheduler.version().epoch, Epoch{3});
    EXPECT_EQ(rig.scheduler.version().digest, first.digest);
    EXPECT_EQ(rig.workers.model().weights, 0u);
    rig.run();
    EXPECT_EQ(rig.of(keys[0]).spans.back().digest, first.digest);

    // Rolls forward again: the version that served before the rollback is the retained one now.
    order(messages::UpdateRollback{.update = messages::UpdateId{3}, .new_epoch = Epoch{4}});
    EXPECT_EQ(answer().digest, second_digest);
}

TEST_F(UpdateTest, RollbackWithNothingRetainedIsRefused) {
    order(messages::UpdateRollback{.update = kUpdate, .new_epoch = Epoch{2}});
    EXPECT_EQ(answer().verdict.code, ErrorCode::kFailedPrecondition);
    update(
        messages::UpdateMode::kStaged, messages::KvPolicy::kKeep, Epoch{2}, messages::UpdateId{2}
    );
    // The next stage overwrites the retained copy, even if it is dropped.
    order_stage(
        spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep),
        Epoch{3},
        messages::UpdateId{3}
    );
    EXPECT_TRUE(answer().ok);
    order(messages::UpdateDrop{.update = messages::UpdateId{3}});
    EXPECT_TRUE(answer().ok);
    order(messages::UpdateRollback{.update = messages::UpdateId{4}, .new_epoch = Epoch{4}});
    EXPECT_EQ(answer().verdict.code, ErrorCode::kFailedPrecondition);
    // A direct update leaves no version to return to.
    update(
        messages::UpdateMode::kStaged, messages::KvPolicy::kKeep, Epoch{5}, messages::UpdateId{5}
    );
    update(
        messages::UpdateMode::kDirect, messages::KvPolicy::kKeep, Epoch{6}, messages::UpdateId{6}
    );
    order(messages::UpdateRollback{.update = messages::UpdateId{7}, .new_epoch = Epoch{7}});
    EXPECT_EQ(answer().verdict.code, ErrorCode::kFailedPrecondition);
}

}  // namespace
}  // namespace pitstop::scheduler
