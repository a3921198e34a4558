// Requests are retracted when pages run out.
#include "tests/scheduler_proc/rig.h"

#include <gtest/gtest.h>

namespace pitstop::scheduler {
namespace {

TEST(Retract, P4_LosesNoToken) {
    for (const std::int64_t num_pages : {11, 13, 16, 20, 27}) {
        SCOPED_TRACE(testing::Message() << num_pages << " pages");
        Rig rig({.num_pages = num_pages});
        std::vector<std::pair<RequestKey, Ask>> sent;
        for (int i = 0; i < 6; ++i) {
            Ask ask{.prompt = prompt_of(5 + i, 100 + i), .max_new_tokens = 30};
            ask.logprobs = {.enabled = true, .top = 1};
            sent.emplace_back(rig.send(ask), ask);
        }
        rig.run();
        for (const auto& [key, ask] : sent) {
            const Received want = rig.expected(ask);
            EXPECT_EQ(rig.of(key).tokens, want.tokens);
            EXPECT_EQ(rig.of(key).logprobs, want.logprobs);
            EXPECT_EQ(rig.of(key).top_ids, want.top_ids);
        }
        EXPECT_GT(rig.status().retractions_total, 0);
        EXPECT_EQ(rig.status().pages_free + rig.status().pages_cached, num_pages);
    }
}

TEST(Retract, TheYoungestGivesWayAndIsReadmittedFirst) {
    Rig rig({.num_pages = 14});
    const RequestKey elder = rig.send({.prompt = prompt_of(8, 1), .max_new_tokens = 40});
    const RequestKey younger = rig.send({.prompt = prompt_of(8, 2), .max_new_tokens = 40});
    rig.turn();
    while (rig.status().retractions_total == 0) ASSERT_TRUE(rig.step());
    const RequestKey newcomer = rig.send({.prompt = prompt_of(2, 3), .max_new_tokens = 2});
    rig.run();
    EXPECT_EQ(rig.of(elder).counts->retractions, 0);
    EXPECT_GT(rig.of(younger).counts->retractions, 0);
    EXPECT_EQ(rig.of(younger).tokens.size(), 40u);
    EXPECT_EQ(rig.of(newcomer).tokens.size(), 2u);
}

TEST(Retract, PriorityDecidesWhoGivesWay) {
    Rig rig({.num_pages = 14});
    const RequestKey elder = rig.send({.prompt = prompt_of(8, 1), .max_new_tokens = 40});
    const RequestKey important =
        rig.send({.prompt = prompt_of(8, 2), .max_new_tokens = 40, .priority = 1});
    rig.run();
    EXPECT_GT(rig.of(elder).counts->retractions, 0);
    EXPECT_EQ(rig.of(important).counts->retractions, 0);
}

TEST(Retract, ARequestThatFillsThePoolAloneRunsToItsEnd) {
    Rig rig({.num_pages = 10});
    std::vector<RequestKey> keys;
    for (int i = 0; i < 4; ++i)
        keys.push_back(rig.send({.prompt = prompt_of(4, 100 + i), .max_new_tokens = 36}));
    rig.run();
    for (const RequestKey key : keys) EXPECT_EQ(rig.of(key).tokens.size(), 36u);
}

TEST(Retract, WhileScoresAreIncompleteStartsThemOver) {
    Rig rig({.num_pages = 16}, {.tokens_per_step_max = 4});
    const Ask elder_ask{.prompt = prompt_of(8, 1), .max_new_tokens = 50};
    const RequestKey elder = rig.send(elder_ask);
    Ask scored{.prompt = prompt_of(30, 2), .max_new_tokens = 3};
    scored.logprobs = {.enabled = true, .prompt_start = 0, .top = 1};
    rig.turn();
    for (int i = 0; i < 18; ++i) rig.step();
    const RequestKey key = rig.send(scored);
    rig.run();
    EXPECT_GT(rig.of(key).counts->retractions, 0);
    EXPECT_EQ(rig.of(key).prompt, rig.expected(scored).prompt);
    EXPECT_EQ(rig.of(key).tokens, rig.expected(scored).tokens);
    EXPECT_EQ(rig.of(elder).tokens, rig.expected(elder_ask).tokens);
}

// Decodes of younger requests are planned first. The prefill of an older request may then take a
// page from one of these rows in the same plan.
TEST(Retract, AnElderPrefillTakesAPageFromARowOfTheSamePlan) {
    for (const std::int64_t num_pages : {40, 41, 42, 43}) {
        Rig rig({.num_pages = num_pages, .page_size = 1}, {.tokens_per_step_max = 1});
        std::vector<std::pair<RequestKey, Ask>> sent;
        for (int i = 0; i < 3; ++i) {
            Ask ask{.prompt = prompt_of(1, 100 + i), .max_new_tokens = 30};
            sent.emplace_back(rig.send(ask), ask);
        }
        rig.turn();
        for (int i = 0; i < 4; ++i) rig.step();
        Ask elder{.prompt = prompt_of(20, 200), .max_new_tokens = 4, .priority = 1};
        sent.emplace_back(rig.send(elder), elder);
        rig.run();
        for (const auto& [key, ask] : sent) EXPECT_EQ(rig.of(key).tokens, rig.expected(ask).tokens);
        EXPECT_EQ(rig.of(sent.back().first).counts->retractions, 0);
        EXPECT_GT(rig.status().retractions_total, 0);
    }
}

TEST(Retract, PagesThatAreAboutToBecomeFreeAreWaitedFor) {
    Rig rig({.num_pages = 30, .page_size = 1});
    std::vector<RequestKey> keys;
    for (int i = 0; i < 3; ++i)
        keys.push_back(rig.send({.prompt = prompt_of(2, 100 + i), .max_new_tokens = 14}));
    rig.turn();
    while (rig.status().pages_free + rig.status().pages_cached > 0) ASSERT_TRUE(rig.step());
    ASSERT_EQ(rig.status().retractions_total, 0);
    rig.control(messages::EndRequests{.keys = {keys[0]}}
    );  // its pages are in use by steps in flight
    rig.run();
    EXPECT_EQ(rig.status().retractions_total, 0);
    EXPECT_EQ(rig.of(keys[2]).tokens.size(), 14u);
}

TEST(Retract, ANewRequestIsNotAdmittedOnlyToBeRetracted) {
    Rig rig({.num_pages = 8});
    rig.send({.prompt = prompt_of(4, 1), .max_new_tokens = 12});
    rig.turn();
    rig.step();
    const RequestKey large = rig.send({.prompt = prompt_of(24, 2), .max_new_tokens = 4});
    rig.run();
    EXPECT_EQ(rig.status().retractions_total, 0);
    EXPECT_EQ(rig.of(large).tokens.size(), 4u);
}

TEST(Retract, AnAbortedRetractedRequestReturnsItsTokens) {
    Rig rig({.num_pages = 14});
    rig.send({.prompt = prompt_of(8, 1), .max_new_tokens = 40});
    const Ask ask{.prompt = prompt_of(8, 2), .max_new_tokens = 40};
    const RequestKey younger = rig.send(ask);
    rig.turn();
    while (rig.status().retractions_total == 0) ASSERT_TRUE(rig.step());
    rig.control(messages::EndRequests{.keys = {younger}});
    rig.turn();
    ASSERT_TRUE(rig.of(younger).finish);
    EXPECT_EQ(rig.of(younger).finish->reason, messages::FinishReason::kAbort);
    const auto want = rig.expected(ask).tokens;
    const auto got = rig.of(younger).tokens;
    EXPECT_GT(got.size(), 0u);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin()));
    EXPECT_EQ(rig.of(younger).counts->retractions, 1);
    rig.run();
}

// A stop text may end the request at any token. The detokenizer then reports the counts that it got
// last, so these counts must include the retraction.
TEST(Retract, IsToldWithTheFirstTokenAfterIt) {
    Rig rig({.num_pages = 14});
    rig.send({.prompt = prompt_of(8, 1), .max_new_tokens = 40});
    const RequestKey younger = rig.send({.prompt = prompt_of(8, 2), .max_new_tokens = 40});
    rig.turn();
    while (rig.status().retractions_total == 0) ASSERT_TRUE(rig.step());
    const std::size_t before = rig.of(younger).tokens.size();
    while (rig.of(younger).tokens.size() < before + 4) ASSERT_TRUE(rig.step());
    ASSERT_FALSE(rig.of(younger).finish);
    EXPECT_EQ(rig.of(younger).counts->retractions, 1);
    rig.run();
}

}  // namespace
}  // namespace pitstop::scheduler
