// What ends a request, and requests that only score their prompts.
#include "tests/scheduler_proc/expectations.h"

#include <algorithm>

namespace pitstop::scheduler {
namespace {

TEST(Scheduler, StopsAtEndOfSequenceUnlessToldToIgnoreIt) {
    FakeModel model{.eos_one_in = 4};
    Rig rig(model);
    Ask ask{.prompt = prompt_of(6), .max_new_tokens = 40};
    const RequestKey stopped = rig.send(ask);
    Ask ignoring = ask;
    ignoring.sampling.ignore_eos = true;
    const RequestKey ran_on = rig.send(ignoring);
    Ask late = ask;
    late.sampling.min_new_tokens = 20;
    const RequestKey masked = rig.send(late);
    rig.run();
    expect_all(rig, stopped, ask);
    expect_all(rig, ran_on, ignoring);
    expect_all(rig, masked, late);
    EXPECT_EQ(rig.of(stopped).finish->matched_token, TokenId{1});
    EXPECT_EQ(rig.of(stopped).tokens.back(), TokenId{1}) << "the stop token is part of the output";
    EXPECT_EQ(rig.of(ran_on).tokens.size(), 40u);
    EXPECT_GE(rig.of(masked).tokens.size(), 20u);
}

TEST(Scheduler, StopsAtAStopTokenEvenWhenIgnoringEndOfSequence) {
    Rig rig;
    Ask ask{.prompt = prompt_of(6), .max_new_tokens = 10};
    ask.sampling.stop_token_ids = {rig.expected(ask).tokens.at(3)};
    ask.sampling.ignore_eos = true;
    const RequestKey key = rig.send(ask);
    rig.run();
    expect_all(rig, key, ask);
    EXPECT_EQ(rig.of(key).tokens.size(), 4u);
}

TEST(Scheduler, WithoutMaxNewTokensRunsToTheEndOfTheContext) {
    Rig rig({.context_len = 20});
    const Ask ask{.prompt = prompt_of(6), .max_new_tokens = std::nullopt};
    const RequestKey key = rig.send(ask);
    rig.run();
    expect_all(rig, key, ask);
    EXPECT_EQ(rig.of(key).tokens.size(), 14u);
}

TEST(Scheduler, LogitsThatAreNotFiniteEndTheRequestAloneAndSaySo) {
    FakeModel model{.nan_one_in = 20};
    Rig rig(model);
    std::vector<std::pair<RequestKey, Ask>> sent;
    for (int i = 0; i < 6; ++i) {
        Ask ask{.prompt = prompt_of(4, 600 + i), .max_new_tokens = 20};
        sent.emplace_back(rig.send(ask), ask);
    }
    rig.run();
    int num_errors = 0;
    for (const auto& [key, ask] : sent) {
        expect_all(rig, key, ask);
        if (error_of(rig, key).empty()) continue;
        ++num_errors;
        EXPECT_EQ(error_of(rig, key), "internal");
        EXPECT_NE(rig.of(key).finish->verdict.message.find("not finite"), std::string::npos);
    }
    EXPECT_GT(num_errors, 0);
    EXPECT_LT(num_errors, 6);
}

TEST(Scheduler, ATokenOutsideTheVocabularyEndsTheRequest) {
    Rig rig;
    const RequestKey key = rig.send({.prompt = prompt_of(4)});
    rig.turn();
    auto answers = rig.workers.run_one();
    std::get<messages::StepResult>(answers[0]).sampled.values[0] = TokenId{1000};
    TurnInput in;
    in.workers = answers;
    rig.turn(in);
    EXPECT_EQ(error_of(rig, key), "internal");
    rig.run();
}

// ---- scoring ----

TEST(Scheduler, ScoresPromptsOverChunksAndTellsThemInTheFirstChunk) {
    for (const std::int64_t start : {0, 1, 2, 7, 12, 29, 30, 1000}) {
        for (const std::int64_t output_len : {0, 1, 4}) {
            SCOPED_TRACE(testing::Message() << "start " << start << " output " << output_len);
            Rig rig({}, {.tokens_per_step_max = 7});
            Ask ask{.prompt = prompt_of(30), .max_new_tokens = output_len};
            ask.logprobs = {.enabled = true, .prompt_start = start, .top = 2, .ids = {TokenId{5}}};
            const RequestKey first = rig.send(ask);
            rig.run();
            expect_all(rig, first, ask);
            const RequestKey again = rig.send(ask);  // now the prefix is cached
            rig.run();
            expect_all(rig, again, ask);
            if (start == 12 && output_len == 4) {
                EXPECT_EQ(rig.of(again).counts->cached_tokens, 8) << "positions 11.. are computed";
            }
        }
    }
}

TEST(Scheduler, AScoredPromptOfOneTokenHasNoScores) {
    Rig rig;
    Ask ask{.prompt = prompt_of(1), .max_new_tokens = 0};
    ask.logprobs = {.enabled = true, .prompt_start = 0};
    const RequestKey key = rig.send(ask);
    rig.run();
    expect_all(rig, key, ask);
    EXPECT_TRUE(rig.of(key).prompt->logprobs.empty());
}

TEST(Scheduler, MaxNewTokensZeroOnlyScores) {
    Rig rig({.context_len = 30});
    Ask ask{.prompt = prompt_of(30), .max_new_tokens = 0};
    ask.logprobs = {.enabled = true, .prompt_start = 0};
    const RequestKey key = rig.send(ask);
    rig.run();
    expect_all(rig, key, ask);
    EXPECT_EQ(rig.of(key).finish->reason, messages::FinishReason::kLength);
    EXPECT_EQ(rig.of(key).num_chunks, 1);
    for (const messages::StepPlan& plan : rig.workers.plans()) {
        for (const messages::PlanRow& row : plan.rows) EXPECT_EQ(row.output_index, -1);
    }
}

}  // namespace
}  // namespace pitstop::scheduler
