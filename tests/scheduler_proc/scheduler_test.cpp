#include "scheduler_proc/scheduler.h"

#include "tests/scheduler_proc/expectations.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace pitstop::scheduler {
namespace {

std::size_t num_tokens(const messages::StepPlan& plan) { return plan.tokens.values.size(); }

TEST(Scheduler, SaysHelloOnceWhenEveryRankIsLoaded) {
    FakeWorkers workers({.tp = 2});
    Scheduler scheduler({.tp = 2, .page_size = 4});
    auto hellos = workers.hellos();
    TurnInput first;
    first.workers.push_back(hellos[1]);
    EXPECT_TRUE(scheduler.turn(first).tokenizer.empty());
    EXPECT_EQ(scheduler.status({}, {}).state, messages::ReplicaState::kLoading);
    TurnInput second;
    second.workers.push_back(hellos[0]);
    const TurnOutput out = scheduler.turn(second);
    ASSERT_EQ(out.tokenizer.size(), 1u);
    const auto& hello = std::get<messages::SchedulerHello>(out.tokenizer[0]);
    EXPECT_EQ(hello.pool_tokens, 64 * 4);
    EXPECT_EQ(hello.epoch, Epoch{1});
    EXPECT_EQ(hello.digest.size(), 32u);
    // A second hello of a rank is counted as late, and changes nothing.
    EXPECT_TRUE(scheduler.turn(second).tokenizer.empty());
    EXPECT_EQ(scheduler.num_late(), 1);
}

TEST(Scheduler, WorkersThatDisagreeAreFatal) {
    Scheduler scheduler({.tp = 1, .page_size = 16});
    TurnInput in;
    in.workers = FakeWorkers({.page_size = 4}).hellos();
    const TurnOutput out = scheduler.turn(in);
    ASSERT_TRUE(out.fatal);
    EXPECT_NE(out.fatal->message.find("--page-size"), std::string::npos);
}

TEST(Scheduler, ARequestWhileLoadingIsRefused) {
    Rig rig;
    Scheduler scheduler({.tp = 1, .page_size = 4});
    TurnInput in;
    in.requests.push_back(rig.make({.prompt = prompt_of(3)}));
    const TurnOutput out = scheduler.turn(in);
    ASSERT_TRUE(out.batch);
    EXPECT_EQ(out.batch->chunks.at(0).finish->verdict.code, ErrorCode::kUnavailable);
}

TEST(Scheduler, OneRequestGetsWhatTheModelSays) {
    for (const std::int64_t prompt_len : {1, 2, 3, 4, 5, 8, 17}) {
        for (const std::int64_t output_len : {0, 1, 2, 5, 13}) {
            Rig rig;
            const Ask ask{.prompt = prompt_of(prompt_len), .max_new_tokens = output_len};
            const RequestKey key = rig.send(ask);
            rig.run();
            expect_all(rig, key, ask);
            EXPECT_EQ(rig.of(key).counts->prompt_tokens, prompt_len);
            EXPECT_EQ(rig.status().pages_free + rig.status().pages_cached, 64);
        }
    }
}

TEST(Scheduler, EveryRankMustFinishAStep) {
    Rig rig({.tp = 4});
    const Ask ask{.prompt = prompt_of(5)};
    const RequestKey key = rig.send(ask);
    rig.turn();
    auto answers = rig.workers.run_one();
    ASSERT_EQ(answers.size(), 4u);
    for (std::size_t rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(rig.of(key).num_chunks, 0);
        TurnInput in;
        in.workers.push_back(answers[rank]);
        rig.turn(std::move(in));
    }
    EXPECT_EQ(rig.of(key).num_chunks, 1);
    rig.run();
    expect_all(rig, key, ask);
}

TEST(Scheduler, ManyRequestsShareSteps) {
    Rig rig({.num_pages = 200});
    std::vector<std::pair<RequestKey, Ask>> sent;
    for (int i = 0; i < 20; ++i) {
        Ask ask{.prompt = prompt_of(1 + i % 9, 100 + i), .max_new_tokens = 1 + i % 7};
        sent.emplace_back(rig.send(ask), ask);
    }
    rig.run();
    for (const auto& [key, ask] : sent) expect_all(rig, key, ask);
    std::size_t rows_max = 0;
    for (const messages::StepPlan& plan : rig.workers.plans())
        rows_max = std::max(rows_max, plan.rows.size());
    EXPECT_EQ(rows_max, 8u) << "the workers have 8 slots";
}

TEST(Scheduler, AtMostSoManyRequestsRunAtOnce) {
    Rig rig({.num_pages = 200}, {.running_max = 3});
    for (int i = 0; i < 10; ++i) rig.send({.prompt = prompt_of(4, 100 + i)});
    rig.run();
    for (const messages::StepPlan& plan : rig.workers.plans()) EXPECT_LE(plan.rows.size(), 3u);
}

// ---- overlap ----

TEST(Scheduler, TheNextStepIsPlannedWhileOneRuns) {
    Rig rig;
    rig.send({.prompt = prompt_of(5), .max_new_tokens = 6});
    rig.turn();
    ASSERT_EQ(rig.workers.num_plans_queued(), 2u);
    const messages::StepPlan& second = rig.workers.plans().at(1);
    EXPECT_TRUE(second.rows.at(0).takes_sampled);
    EXPECT_EQ(second.rows.at(0).begin, 5);
    EXPECT_EQ(second.rows.at(0).output_index, 1);
    rig.turn();
    EXPECT_EQ(rig.workers.num_plans_queued(), 2u) << "no third one";
}

TEST(Scheduler, TwoStepsInOneTurnMakeOneChunkWithTheCountsOfBoth) {
    Rig rig;
    const Ask ask{.prompt = prompt_of(5)};
    const RequestKey key = rig.send(ask);
    rig.turn();
    TurnInput in;
    for (int i = 0; i < 2; ++i) {
        for (FromWorker& answer : rig.workers.run_one()) in.workers.push_back(std::move(answer));
    }
    rig.turn(std::move(in));
    EXPECT_EQ(rig.of(key).num_chunks, 1);
    EXPECT_EQ(rig.of(key).tokens.size(), 2u);
    EXPECT_EQ(rig.of(key).spans.size(), 1u);
    EXPECT_EQ(rig.of(key).first_counts->completion_tokens, 2);
    rig.run();
    expect_all(rig, key, ask);
}

TEST(Scheduler, P5_APassThatNeverEndsEndsTheReplicaAndNamesTheRank) {
    Rig rig({.tp = 2}, {.step_timeout = std::chrono::seconds(30)});
    rig.send({.prompt = prompt_of(5)});
    rig.turn();
    TurnInput in;
    in.workers.push_back(rig.workers.run_one().at(0));  // rank 1 is stuck
    const TurnOutput out = rig.turn(std::move(in));
    ASSERT_TRUE(out.wake_at);
    EXPECT_FALSE(out.fatal);
    rig.now = *out.wake_at;
    const TurnOutput late = rig.turn();
    ASSERT_TRUE(late.fatal);
    EXPECT_EQ(late.fatal->code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(late.fatal->message.find("rank 1"), std::string::npos);
}

TEST(Scheduler, ARowPlannedPastTheEndIsDropped) {
    FakeModel model{.eos_one_in = 3};
    Rig rig(model);
    std::vector<std::pair<RequestKey, Ask>> sent;
    for (int i = 0; i < 6; ++i) {
        Ask ask{.prompt = prompt_of(4, 200 + i), .max_new_tokens = 30};
        sent.emplace_back(rig.send(ask), ask);
    }
    rig.run();
    std::int64_t num_stopped = 0;
    for (const auto& [key, ask] : sent) {
        expect_all(rig, key, ask);
        num_stopped += rig.of(key).finish->reason == messages::FinishReason::kStop ? 1 : 0;
    }
    EXPECT_GT(num_stopped, 0);
    EXPECT_GT(rig.scheduler.num_rows_dropped(), 0);
}

TEST(Scheduler, NothingIsPlannedPastMaxNewTokens) {
    Rig rig;
    rig.send({.prompt = prompt_of(4), .max_new_tokens = 3});
    rig.run();
    EXPECT_EQ(rig.workers.plans().size(), 3u);
    EXPECT_EQ(rig.scheduler.num_rows_dropped(), 0);
}

// ---- chunked prefill ----

TEST(Scheduler, LongPromptsArePrefilledInChunksUnderTheBudget) {
    Rig rig({.num_pages = 200, .context_len = 512}, {.tokens_per_step_max = 16});
    std::vector<std::pair<RequestKey, Ask>> sent;
    for (int i = 0; i < 4; ++i) {
        Ask ask{.prompt = prompt_of(50 + i, 300 + i), .max_new_tokens = 5};
        sent.emplace_back(rig.send(ask), ask);
    }
    rig.run();
    for (const auto& [key, ask] : sent) expect_all(rig, key, ask);
    for (const messages::StepPlan& plan : rig.workers.plans()) EXPECT_LE(num_tokens(plan), 16u);
}

TEST(Scheduler, DecodesComeFirstAndPrefillsKeepAShare) {
    Rig rig({.num_pages = 200, .num_slots = 32}, {.tokens_per_step_max = 8});
    for (int i = 0; i < 12; ++i) rig.send({.prompt = prompt_of(1, 400 + i), .max_new_tokens = 60});
    for (int i = 0; i < 8; ++i) rig.step();
    ASSERT_EQ(rig.status().num_running, 12);
    const std::size_t before = rig.workers.plans().size();
    const RequestKey key = rig.send({.prompt = prompt_of(9, 500), .max_new_tokens = 1});
    while (!rig.of(key).finish) rig.step();
    EXPECT_LE(rig.workers.plans().size() - before, 7u) << "two tokens of prompt a step";
    for (std::size_t i = before; i < rig.workers.plans().size(); ++i)
        EXPECT_GE(rig.workers.plans()[i].rows.size(), 12u) << "no decode waited";
}

// ---- the prefix cache in use ----

TEST(Scheduler, ASecondRequestReusesThePagesOfTheFirst) {
    Rig rig;
    const Ask ask{.prompt = prompt_of(21), .max_new_tokens = 4};
    rig.send(ask);
    rig.run();
    const std::int64_t run_before = rig.workers.num_tokens_run();
    const RequestKey again = rig.send(ask);
    rig.run();
    expect_all(rig, again, ask);
    EXPECT_EQ(rig.of(again).counts->cached_tokens, 20);
    EXPECT_EQ(rig.workers.num_tokens_run() - run_before, 1 + 3);
    EXPECT_EQ(rig.status().cached_tokens_total, 20);
}

// Pages do not have the state after their tokens.
TEST(Scheduler, APrefixIsComputedAgainWhereNoCheckpointHasTheStateAfterIt) {
    Rig rig({.state_bytes = 64});
    const Ask ask{.prompt = prompt_of(21), .max_new_tokens = 4};
    rig.send(ask);
    rig.run();
    const RequestKey again = rig.send(ask);
    rig.run();
    expect_all(rig, again, ask);
    EXPECT_EQ(rig.of(again).counts->cached_tokens, 0);
    EXPECT_EQ(rig.workers.num_tokens_run(), 2 * (21 + 3));
}

TEST(Scheduler, OutputIsCachedForTheNextTurnOfAConversation) {
    Rig rig;
    Ask ask{.prompt = prompt_of(10), .max_new_tokens = 11};
    const RequestKey first = rig.send(ask);
    rig.run();
    Ask longer{.prompt = ask.prompt, .max_new_tokens = 4};
    const auto& said = rig.of(first).tokens;
    longer.prompt.insert(longer.prompt.end(), said.begin(), said.end());
    longer.prompt.push_back(TokenId{42});
    const RequestKey second = rig.send(longer);
    rig.run();
    expect_all(rig, second, longer);
    EXPECT_EQ(rig.of(second).counts->cached_tokens, 20) << "of 21: the last token has no KV yet";
}

TEST(Scheduler, AGroupWithOnePromptPrefillsItOnce) {
    Rig rig({.num_pages = 128}, {.tokens_per_step_max = 32});
    std::vector<std::pair<RequestKey, Ask>> sent;
    for (std::uint64_t i = 0; i < 8; ++i) {
        Ask ask{.prompt = prompt_of(61), .max_new_tokens = 3};
        ask.sampling.seed = i;
        sent.emplace_back(rig.send(ask), ask);
    }
    rig.run();
    for (const auto& [key, ask] : sent) expect_all(rig, key, ask);
    EXPECT_EQ(rig.workers.num_tokens_run(), 61 + 7 * 1 + 8 * 2);
}

TEST(Scheduler, TheCacheNeverStarvesRequests) {
    Rig rig({.num_pages = 12});
    for (int i = 0; i < 10; ++i) {
        const Ask ask{.prompt = prompt_of(30, 700 + i), .max_new_tokens = 10};
        const RequestKey key = rig.send(ask);
        rig.run();
        expect_all(rig, key, ask);
    }
    EXPECT_GT(rig.status().pages_cached, 0);
}

// ---- refusals ----

TEST(Scheduler, WhatCannotBeServedIsRefusedAtOnce) {
    Rig rig({.num_pages = 8, .context_len = 40});
    const RequestKey too_long = rig.send({.prompt = prompt_of(40)});
    const RequestKey too_much = rig.send({.prompt = prompt_of(36), .max_new_tokens = 5});
    const RequestKey pool = rig.send({.prompt = prompt_of(30), .max_new_tokens = 5});
    const RequestKey empty = rig.send({});
    const RequestKey vocabulary = rig.send({.prompt = {TokenId{1000}}});
    const RequestKey good = rig.send({.prompt = prompt_of(3)});
    rig.turn();
    EXPECT_EQ(error_of(rig, too_long), "invalid_argument");
    EXPECT_EQ(error_of(rig, too_much), "invalid_argument");
    EXPECT_EQ(error_of(rig, pool), "resource_exhausted");
    EXPECT_EQ(error_of(rig, empty), "invalid_argument");
    EXPECT_EQ(error_of(rig, vocabulary), "invalid_argument");
    EXPECT_EQ(rig.of(too_long).counts->prompt_tokens, 40);
    rig.run();
    EXPECT_TRUE(rig.of(good).finish);
}

TEST(Scheduler, TheQueueIsBounded) {
    Rig rig({}, {.running_max = 1, .queue_len_max = 3});
    std::vector<RequestKey> keys;
    for (int i = 0; i < 5; ++i) keys.push_back(rig.send({.prompt = prompt_of(3, 100 + i)}));
    rig.turn();
    EXPECT_EQ(error_of(rig, keys[3]), "resource_exhausted");
    EXPECT_EQ(error_of(rig, keys[4]), "resource_exhausted");
    rig.run();
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(rig.of(keys[i]).tokens.size(), 8u);
}

TEST(Scheduler, ARequestSentTwiceIsCountedAndTheFirstGoesOn) {
    Rig rig;
    const Ask ask{.prompt = prompt_of(3)};
    const messages::TokenizedRequest request = rig.make(ask);
    TurnInput in;
    in.requests = {request, request};
    rig.turn(in);
    EXPECT_EQ(rig.status().refused_total, 1);
    in.requests = {request};
    rig.turn(in);
    rig.run();
    expect_all(rig, request.key, ask);
}

// ---- order ----

TEST(Scheduler, HigherPriorityIsAdmittedFirstThenEarlierArrival) {
    Rig rig({}, {.running_max = 1});
    rig.send({.prompt = prompt_of(4, 1)});
    const RequestKey low = rig.send({.prompt = prompt_of(4, 2), .priority = -1});
    const RequestKey first = rig.send({.prompt = prompt_of(4, 3)});
    const RequestKey second = rig.send({.prompt = prompt_of(4, 4)});
    const RequestKey high = rig.send({.prompt = prompt_of(4, 5), .priority = 9});
    std::vector<RequestKey> order;
    rig.turn();
    for (int i = 0; i < 1000 && !rig.workers.is_idle(); ++i) {
        rig.step();
        for (const RequestKey key : {low, first, second, high}) {
            if (rig.of(key).finish && std::ranges::find(order, key) == order.end())
                order.push_back(key);
        }
    }
    // All requests came in one turn, so priority orders all of them.
    EXPECT_EQ(order, (std::vector{high, first, second, low}));
}

TEST(Scheduler, TheSameFactsGiveTheSamePlans) {
    const auto record = [] {
        Rig rig({.num_pages = 24, .eos_one_in = 9}, {.tokens_per_step_max = 16});
        for (int i = 0; i < 30; ++i) {
            rig.send(
                {.prompt = prompt_of(3 + i % 20, 100 + i % 5),
                 .max_new_tokens = 4 + i % 6,
                 .priority = i % 3}
            );
            if (i % 4 == 0) rig.step();
        }
        rig.run();
        std::string trace;
        for (const messages::StepPlan& plan : rig.workers.plans()) {
            for (const messages::PlanRow& row : plan.rows)
                trace += fmt::format("{}:{}+{} ", raw(row.slot), row.begin, row.num_new);
            for (const PageId page : plan.pages.values) trace += fmt::format("{} ", raw(page));
        }
        return trace;
    };
    EXPECT_EQ(record(), record());
}

// ---- results that are late, wrong or repeated ----

TEST(Scheduler, LateDuplicateAndUnknownResultsAreCountedAndHarmless) {
    Rig rig({.tp = 2});
    const Ask ask{.prompt = prompt_of(5)};
    const RequestKey key = rig.send(ask);
    rig.turn();
    auto answers = rig.workers.run_one();
    TurnInput in;
    in.workers = {answers[0], answers[0]};
    in.workers.emplace_back(messages::StepResult{.step = StepId{77}, .epoch = Epoch{1}});
    in.workers.emplace_back(messages::StepResult{
        .step = StepId{1}, .epoch = Epoch{1}, .rank = Rank{9}});
    in.workers.emplace_back(messages::WorkerStaged{.update = messages::UpdateId{4}});
    in.workers.emplace_back(messages::WorkerCommitted{.update = messages::UpdateId{4}});
    in.workers.emplace_back(messages::WorkerDropped{.update = messages::UpdateId{4}});
    in.workers.push_back(answers[1]);
    rig.turn(in);
    EXPECT_EQ(rig.scheduler.num_late(), 6);
    in.workers = answers;  // once more, after it is done
    rig.turn(in);
    EXPECT_EQ(rig.scheduler.num_late(), 8);
    rig.run();
    expect_all(rig, key, ask);
}

TEST(Scheduler, P1_AResultUnderAnotherVersionIsFatal) {
    Rig rig;
    rig.send({.prompt = prompt_of(5)});
    rig.turn();
    auto answers = rig.workers.run_one();
    std::get<messages::StepResult>(answers[0]).epoch = Epoch{2};
    TurnInput in;
    in.workers = answers;
    const TurnOutput out = rig.turn(in);
    ASSERT_TRUE(out.fatal);
    EXPECT_NE(out.fatal->message.find("epoch 2"), std::string::npos);
}

TEST(Scheduler, AResultThatDoesNotFitItsPlanIsFatal) {
    Rig rig;
    rig.send({.prompt = prompt_of(5)});
    rig.turn();
    auto answers = rig.workers.run_one();
    std::get<messages::StepResult>(answers[0]).logprobs.values.clear();
    TurnInput in;
    in.workers = answers;
    const TurnOutput out = rig.turn(in);
    ASSERT_TRUE(out.fatal);
    EXPECT_NE(out.fatal->message.find("logprobs"), std::string::npos);
}

// ---- status ----

TEST(Status, P5_IsAnsweredWhileAStepIsStuck) {
    Rig rig;
    rig.send({.prompt = prompt_of(5)});
    rig.turn();
    rig.now += std::chrono::seconds(3);
    rig.control(messages::Status{.call = CallId{8}});
    rig.turn();
    const auto replies = rig.take<messages::ReplicaStatus>();
    ASSERT_EQ(replies.size(), 1u);
    EXPECT_EQ(replies[0].call, CallId{8});
    EXPECT_EQ(replies[0].state, messages::ReplicaState::kRunning);
    EXPECT_EQ(replies[0].steps_in_flight, 2);
    EXPECT_GT(replies[0].step_age_s, 2.9);
    EXPECT_EQ(replies[0].num_running, 1);
    EXPECT_EQ(replies[0].pages_total, 64);
    rig.run();
    EXPECT_EQ(rig.status().output_tokens_total, 8);
    EXPECT_EQ(rig.status().step_age_s, 0);
}

TEST(SchedulerConfig, OutOfRangeIsRefusedWithTheFlagsName) {
    EXPECT_FALSE(problem_of(SchedulerConfig{}));
    const auto flag_of = [](const SchedulerConfig& config) {
        const auto error = problem_of(config);
        return error ? error->message.substr(0, error->message.find(' ')) : "";
    };
    EXPECT_EQ(flag_of({.tp = 0}), "--tp");
    EXPECT_EQ(flag_of({.page_size = 0}), "--page-size");
    EXPECT_EQ(flag_of({.tokens_per_step_max = 0}), "--chunked-prefill-size");
    EXPECT_EQ(flag_of({.running_max = 5000}), "--max-running-requests");
    EXPECT_EQ(flag_of({.queue_len_max = 0}), "--max-queued-requests");
}

}  // namespace
}  // namespace pitstop::scheduler
