// Speculation in the scheduler: rows with drafts, and which of their results count. The fake
// workers derive tokens from the whole context and check every page that a row reads. So they
// notice a token or page that depends on a wrong draft.
#include "tests/scheduler_proc/expectations.h"
#include "tests/scheduler_proc/update_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace pitstop::scheduler {
namespace {

constexpr std::int64_t kDrafts = 4;

SchedulerConfig speculating(std::int64_t num = kDrafts) { return {.drafts_max = num}; }

// Returns the ask with its own output as drafts. Every wrong_every-th draft is wrong; 0: none is.
Ask with_drafts(const Rig& rig, Ask ask, std::size_t wrong_every = 0) {
    ask.draft_ids = rig.expected(ask).tokens;
    for (std::size_t i = 0; wrong_every > 0 && i < ask.draft_ids.size(); ++i) {
        if ((i + 1) % wrong_every == 0)
            ask.draft_ids[i] = static_cast<TokenId>((raw(ask.draft_ids[i]) + 1) % 1000);
    }
    return ask;
}

Ask ask_of(std::int64_t max_new_tokens = 30) {
    Ask ask{.prompt = prompt_of(7), .max_new_tokens = max_new_tokens};
    ask.logprobs = {.enabled = true, .top = 2, .ids = {TokenId{3}}};
    return ask;
}

messages::DraftCounts counts_of(Rig& rig, RequestKey key) { return *rig.of(key).counts->drafts; }

TEST(Drafts, P11_RightDraftsTakeFewerPassesAndTheTokensAreTheSame) {
    Rig rig({}, speculating());
    const Ask ask = with_drafts(rig, ask_of(31));
    const RequestKey key = rig.send(ask);
    rig.run();
    expect_all(rig, key, ask);
    const messages::DraftCounts counts = counts_of(rig, key);
    EXPECT_EQ(counts.passes, 7) << "one token of the prompt, and six rows of five";
    EXPECT_EQ(counts.rows, 6);
    EXPECT_EQ(counts.drafted, 24);
    EXPECT_EQ(counts.accepted, 24);
    EXPECT_EQ(rig.status().drafts, counts);
}

TEST(Drafts, P11_WrongDraftsCountForNothingWhereverTheyAre) {
    for (const std::size_t wrong_every : {1u, 2u, 3u, 4u, 5u, 7u}) {
        for (const std::int64_t page_size : {1, 3, 4, 16}) {
            SCOPED_TRACE(testing::Message() << "every " << wrong_every << ", pages " << page_size);
            Rig rig({.num_pages = 256, .page_size = page_size}, speculating());
            const Ask ask = with_drafts(rig, ask_of(), wrong_every);
            const RequestKey key = rig.send(ask);
            const Ask other{.prompt = prompt_of(5, 101), .max_new_tokens = 20};
            const RequestKey without = rig.send(other);
            rig.run();
            expect_all(rig, key, ask);
            expect_all(rig, without, other);
            EXPECT_GE(counts_of(rig, key).drafted, counts_of(rig, key).accepted);
            EXPECT_EQ(counts_of(rig, without).drafted, 0);
        }
    }
}

// A request with drafts leaves the same pages in the cache as one without.
TEST(Drafts, P9_P11_PagesAreSharedWithTokensThatCountAlone) {
    for (const std::size_t wrong_every : {0u, 2u, 3u, 5u}) {
        SCOPED_TRACE(testing::Message() << "every " << wrong_every);
        std::vector<std::int64_t> num_cached;
        for (const std::int64_t num_drafts : {std::int64_t{0}, kDrafts}) {
            Rig rig({}, speculating(num_drafts));
            const Ask ask = with_drafts(rig, ask_of(), wrong_every);
            const RequestKey key = rig.send(ask);
            rig.run();
            const messages::ReplicaStatus status = rig.status();
            EXPECT_EQ(status.pages_free + status.pages_cached, status.pages_total);
            Ask next_turn = ask_of(9);
            next_turn.prompt.insert(
                next_turn.prompt.end(), rig.of(key).tokens.begin(), rig.of(key).tokens.end()
            );
            const RequestKey again = rig.send(next_turn);
            rig.run();
            expect_all(rig, again, next_turn);
            num_cached.push_back(rig.of(again).counts->cached_tokens);
        }
        EXPECT_EQ(num_cached[0], num_cached[1]);
    }
}

TEST(Drafts, P11_AStopTokenAmongTheDraftsEndsTheOutputThere) {
    FakeModel model{.eos_one_in = 6};
    int num_stopped = 0;
    for (int first = 100; first < 130; ++first) {
        Rig rig(model, speculating());
        Ask going_on{.prompt = prompt_of(6, first), .max_new_tokens = 40};
        going_on.sampling.ignore_eos = true;
        Ask ask{.prompt = prompt_of(6, first), .max_new_tokens = 40};
        ask.draft_ids = rig.expected(going_on).tokens;  // the drafts continue after the stop
        const RequestKey key = rig.send(ask);
        rig.run();
        expect_all(rig, key, ask);
        num_stopped += rig.of(key).finish->reason == messages::FinishReason::kStop ? 1 : 0;
        EXPECT_EQ(rig.of(key).counts->completion_tokens, std::ssize(rig.of(key).tokens));
    }
    EXPECT_GT(num_stopped, 20);
}

TEST(Drafts, P11_ARequestGetsAsManyTokensAsItAskedForAndItsPoolHas) {
    for (std::int64_t max_new_tokens = 1; max_new_tokens <= 12; ++max_new_tokens) {
        Rig rig({.num_pages = 5, .page_size = 4}, speculating());
        Ask ask = ask_of(max_new_tokens);
        ask = with_drafts(rig, ask);
        ask.draft_ids.resize(30, TokenId{5});
        const RequestKey key = rig.send(ask);
        rig.run();
        expect_all(rig, key, ask);
        EXPECT_EQ(std::ssize(rig.of(key).tokens), max_new_tokens);
    }
}

// An abort, a pause or a retraction comes while a row with drafts is in flight.
TEST(Drafts, P4_P11_EndsAndPausesLoseNoTokenOfARowInFlight) {
    using messages::PauseMode;
    for (const PauseMode mode : {PauseMode::kInPlace, PauseMode::kRetract, PauseMode::kWait}) {
        for (int num_steps = 1; num_steps < 8; ++num_steps) {
            SCOPED_TRACE(testing::Message() << name_of(mode) << " after " << num_steps);
            Rig rig({}, speculating());
            const Ask ask = with_drafts(rig, ask_of(), 3);
            const RequestKey key = rig.send(ask);
            rig.turn();
            for (int i = 0; i < num_steps; ++i) rig.step();
            rig.control(messages::PauseGeneration{.call = CallId{1}, .mode = mode});
            rig.turn();
            rig.run();
            rig.control(messages::ContinueGeneration{.call = CallId{2}});
            rig.run();
            expect_all(rig, key, ask);
        }
    }
    for (int num_steps = 1; num_steps < 8; ++num_steps) {
        Rig rig({}, speculating());
        const Ask ask = with_drafts(rig, ask_of(), 3);
        const RequestKey key = rig.send(ask);
        rig.turn();
        for (int i = 0; i < num_steps; ++i) rig.step();
        rig.control(messages::EndRequests{.keys = {key}});
        rig.run();
        const std::vector<TokenId> want = rig.expected(ask).tokens;
        const std::vector<TokenId>& got = rig.of(key).tokens;
        ASSERT_LT(got.size(), want.size());
        EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin()));
        EXPECT_EQ(rig.status().pages_free + rig.status().pages_cached, rig.status().pages_total);
    }
}

TEST(Drafts, P4_P11_RetractionsForPagesLoseNoToken) {
    for (const std::int64_t num_pages : {11, 13, 16, 20, 27}) {
        SCOPED_TRACE(testing::Message() << num_pages << " pages");
        Rig rig({.num_pages = num_pages}, speculating());
        std::vector<std::pair<RequestKey, Ask>> sent;
        for (int i = 0; i < 6; ++i) {
            Ask ask{.prompt = prompt_of(5 + i, 100 + i), .max_new_tokens = 30};
            ask.logprobs = {.enabled = true, .top = 1};
            ask = with_drafts(rig, ask, static_cast<std::size_t>(i));
            sent.emplace_back(rig.send(ask), ask);
        }
        rig.run();
        for (const auto& [key, ask] : sent) expect_all(rig, key, ask);
        EXPECT_GT(rig.status().retractions_total, 0);
        EXPECT_GT(rig.status().drafts->accepted, 20);
        EXPECT_EQ(rig.status().pages_free + rig.status().pages_cached, num_pages);
    }
}

// No request is retracted to make room for another request's drafts.
TEST(Drafts, TakeNoPageThatAnotherRequestHas) {
    Rig rig({.num_pages = 13, .page_size = 4}, speculating(8));
    const Ask greedy = with_drafts(rig, {.prompt = prompt_of(4, 1), .max_new_tokens = 20});
    const Ask modest{.prompt = prompt_of(8, 2), .max_new_tokens = 20};
    const RequestKey first = rig.send(greedy);
    const RequestKey second = rig.send(modest);
    rig.run();
    expect_all(rig, first, greedy);
    expect_all(rig, second, modest);
    EXPECT_EQ(rig.status().retractions_total, 0) << "6 and 7 pages are 13";
}

TEST(Drafts, P11_NumbersThatAreNotFiniteEndTheRequestAfterTheTokensThatCount) {
    FakeModel model{.nan_one_in = 12};
    int num_bad = 0;
    for (int first = 100; first < 130; ++first) {
        Ask ask{.prompt = prompt_of(6, first), .max_new_tokens = 40};
        Rig plain(model);
        ask.draft_ids = plain.expected(ask).tokens;
        ask.draft_ids.resize(40, TokenId{9});
        const RequestKey unaided = plain.send(ask);
        plain.run();
        Rig rig(model, speculating());
        const RequestKey key = rig.send(ask);
        rig.run();
        EXPECT_EQ(rig.of(key).tokens, plain.of(unaided).tokens);
        EXPECT_EQ(rig.of(key).finish->reason, plain.of(unaided).finish->reason);
        const std::string& message = rig.of(key).finish->verdict.message;
        const std::string& want = plain.of(unaided).finish->verdict.message;
        EXPECT_EQ(
            message.substr(0, message.find(", in step")), want.substr(0, want.find(", in step"))
        );
        num_bad += rig.of(key).finish->reason == messages::FinishReason::kError ? 1 : 0;
    }
    EXPECT_GT(num_bad, 20);
}

TEST(Drafts, P11_RoutesAreThoseOfTheTokensThatCount) {
    FakeModel model{.routes = messages::RouteShape{.layers = 2, .per_token = 3, .num_experts = 40}};
    for (const std::size_t wrong_every : {0u, 2u, 3u, 5u}) {
        Rig rig(model, speculating());
        Ask ask = with_drafts(rig, ask_of(), wrong_every);
        ask.routes_start = 2;
        const RequestKey key = rig.send(ask);
        rig.run();
        const Received want = rig.expected(ask);
        EXPECT_EQ(rig.of(key).tokens, want.tokens);
        ASSERT_TRUE(rig.of(key).routes);
        EXPECT_EQ(rig.of(key).routes->experts, want.routes->experts);
    }
}

// The next step of a request without drafts is planned while its step runs. A request with drafts
// first waits for its token.
TEST(Drafts, WithoutDraftsTheNextStepIsPlannedWhileOneRuns) {
    Rig rig({}, speculating());
    rig.send({.prompt = prompt_of(7, 100), .max_new_tokens = 30});
    rig.turn();
    for (int i = 0; i < 5; ++i) rig.step();
    EXPECT_EQ(rig.scheduler.num_in_flight(), 2u);
    rig.send(with_drafts(rig, {.prompt = prompt_of(7, 101), .max_new_tokens = 30}));
    rig.turn();
    for (int i = 0; i < 5; ++i) rig.step();
    EXPECT_EQ(rig.scheduler.num_in_flight(), 1u);
    rig.run();
}

TEST(Drafts, SamplesOfAPromptDraftFromEachOther) {
    Rig rig({}, speculating());
    std::vector<RequestKey> keys;
    const Ask ask = ask_of(30);  // the fake model gives equal samples for equal seeds
    keys.push_back(rig.send(ask));
    rig.turn();
    for (int i = 0; i < 12; ++i) rig.step();
    keys.push_back(rig.send(ask));
    rig.run();
    keys.push_back(rig.send(ask));
    rig.run();
    for (const RequestKey key : keys) expect_all(rig, key, ask);
    EXPECT_GT(counts_of(rig, keys[1]).accepted, 5) << "of the first, which ran";
    EXPECT_GT(counts_of(rig, keys[2]).accepted, 15) << "of the others, which had ended";
}

TEST(Drafts, AWorkerThatVerifiesNoneRefusesTheFlagByName) {
    for (const bool has_state : {false, true}) {
        FakeModel model{.drafted_max = 0};
        if (has_state) model.state_bytes = 64;
        FakeWorkers workers(model);
        Scheduler scheduler({.page_size = model.page_size, .drafts_max = 4});
        TurnInput in;
        in.workers = workers.hellos();
        const TurnOutput out = scheduler.turn(std::move(in));
        ASSERT_TRUE(out.fatal);
        EXPECT_EQ(out.fatal->code, ErrorCode::kUnsupported);
        EXPECT_NE(out.fatal->message.find("--speculate 4"), std::string::npos);
        EXPECT_EQ(out.fatal->message.find("recurrent state") != std::string::npos, has_state);
    }
}

// --speculate auto stays off with workers that verify no drafts.
TEST(Drafts, AutoIsOffWithWorkersThatVerifyNone) {
    Rig rig({.drafted_max = 0}, {.drafts_max = 16, .has_draft_budget = true});
    const Ask ask = with_drafts(rig, ask_of());
    const RequestKey key = rig.send(ask);
    rig.run();
    expect_all(rig, key, ask);
    EXPECT_FALSE(rig.status().drafts);
    EXPECT_FALSE(rig.of(key).counts->drafts);
}

TEST(Drafts, P11_AutoChangesNoBit) {
    Rig rig({}, {.drafts_max = 16, .has_draft_budget = true});
    std::vector<std::pair<RequestKey, Ask>> sent;
    for (int i = 0; i < 12; ++i) {
        Ask ask{.prompt = prompt_of(5 + i, 100 + i), .max_new_tokens = 60};
        ask = with_drafts(rig, ask, static_cast<std::size_t>(i));
        sent.emplace_back(rig.send(ask), ask);
    }
    rig.run();
    for (const auto& [key, ask] : sent) expect_all(rig, key, ask);
    EXPECT_GT(rig.status().drafts->accepted, 100);
}

using DraftsUpdateTest = UpdateTest;

// For a row in flight at the commit, the tokens that count belong to the old version.
TEST_F(DraftsUpdateTest, P1_P3_P11_ACommitFallsBetweenTwoRowsWithDrafts) {
    using enum messages::KvPolicy;
    for (const messages::KvPolicy policy : {kKeep, kRecompute, kDrain}) {
        for (int num_steps = 0; num_steps < 6; ++num_steps) {
            SCOPED_TRACE(testing::Message() << name_of(policy) << " after " << num_steps);
            Rig fresh({.tp = 2, .num_pages = 128}, speculating());
            std::swap(rig, fresh);
            const Ask ask = with_drafts(rig, ask_of(40), 6);
            const RequestKey key = rig.send(ask);
            rig.turn();
            for (int i = 0; i < num_steps; ++i) rig.step();
            EXPECT_TRUE(update(messages::UpdateMode::kStaged, policy, Epoch{2}).ok);
            rig.run();
            expect_all(rig, key, ask);
            std::int64_t num_in_spans = 0;
            for (const messages::Span& span : rig.of(key).spans) num_in_spans += span.tokens;
            EXPECT_EQ(num_in_spans, 40);
        }
    }
}

}  // namespace
}  // namespace pitstop::scheduler
