// A model with recurrent state: the checkpoints from which requests continue, and how much is
// computed. The workers check that each row continues from the state after its own tokens.
#include "tests/scheduler_proc/expectations.h"
#include "tests/scheduler_proc/update_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace pitstop::scheduler {
namespace {

constexpr std::int64_t kPage = 16;

FakeModel model_of(std::int64_t num_checkpoints, std::int64_t num_pages = 1024) {
    return {
        .num_pages = num_pages,
        .page_size = kPage,
        .num_slots = 24,
        .context_len = 16384,
        .state_bytes = 64,
        .num_checkpoints = num_checkpoints};
}

Ask ask_of(std::vector<TokenId> prompt, std::int64_t max_new_tokens) {
    Ask ask{.prompt = std::move(prompt), .max_new_tokens = max_new_tokens};
    ask.sampling.ignore_eos = true;
    return ask;
}

std::vector<TokenId> joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

class Checkpoints : public testing::Test {
  protected:
    // Runs the request to its end. Returns how many tokens were computed for it.
    std::int64_t run(const Ask& ask) {
        const std::int64_t before = rig.workers.num_tokens_run();
        const RequestKey key = rig.send(ask);
        rig.run();
        expect_all(rig, key, ask);
        last = key;
        return rig.workers.num_tokens_run() - before;
    }
    std::int64_t cached() { return rig.of(last).counts->cached_tokens; }
    std::int64_t replayed() { return rig.of(last).counts->replayed_tokens; }
    messages::CheckpointStatus status() { return *rig.status().checkpoints; }
    void TearDown() override { EXPECT_EQ(rig.workers.problems(), std::vector<std::string>{}); }

    Rig rig{model_of(8)};
    RequestKey last{};
};

TEST_F(Checkpoints, TenTurnsOfAConversationComputeLittleMoreThanTheirNewTokens) {
    std::vector<TokenId> history;
    std::int64_t num_run = 0;
    std::int64_t num_new = 0;
    for (int turn = 0; turn < 10; ++turn) {
        history = joined(history, prompt_of(500 + 7 * turn, 100 + turn));
        const Ask ask = ask_of(history, 300);
        num_run += run(ask);
        num_new += 500 + 7 * turn + 300;
        history = joined(history, rig.of(last).tokens);
    }
    EXPECT_EQ(std::ssize(history), num_new);
    EXPECT_LE(num_run, num_new + num_new / 10);
    EXPECT_LE(num_run, num_new + 10 * kPage) << "less than a page each";
    EXPECT_EQ(status().replayed_tokens_total, 0);
}

TEST_F(Checkpoints, SixteenSamplesOfAPromptComputeItOnce) {
    std::vector<RequestKey> keys;
    std::vector<Ask> asks;
    for (int i = 0; i < 16; ++i) {
        asks.push_back(ask_of(prompt_of(4000), 20));
        asks.back().sampling.seed = i;
        keys.push_back(rig.send(asks.back()));
    }
    rig.run();
    for (std::size_t i = 0; i < keys.size(); ++i) expect_all(rig, keys[i], asks[i]);
    // All requests but the first compute only the page of the prompt's last token. Each request
    // computes 19 of its 20 outputs.
    const std::int64_t num_run = rig.workers.num_tokens_run();
    EXPECT_LE(num_run, 4000 + 15 * kPage + 16 * 19);
    EXPECT_EQ(status().restored_total, 15);
}

// The first request that branches off finds cached pages but no state there, and saves one for all
// later requests.
TEST_F(Checkpoints, WhereAConversationBranchesAStateIsSavedOnce) {
    const std::vector<TokenId> stem = prompt_of(600);
    EXPECT_EQ(run(ask_of(joined(stem, prompt_of(40, 300)), 4)), 640 + 3);
    const std::int64_t num_shared = 600 / kPage * kPage;
    EXPECT_EQ(run(ask_of(joined(stem, prompt_of(40, 301)), 4)), 640 + 3);
    EXPECT_EQ(cached(), 0);
    EXPECT_EQ(replayed(), num_shared);
    EXPECT_EQ(run(ask_of(joined(stem, prompt_of(40, 302)), 4)), 640 - num_shared + 3);
    EXPECT_EQ(cached(), num_shared);
    EXPECT_EQ(replayed(), 0);
    EXPECT_EQ(status().replayed_tokens_total, num_shared);
}

TEST_F(Checkpoints, RequestsWaitForTheOneThatSavesTheirBranch) {
    const std::vector<TokenId> stem = prompt_of(2000);
    run(ask_of(joined(stem, prompt_of(40, 300)), 4));
    const std::int64_t before = rig.workers.num_tokens_run();
    for (int i = 0; i < 8; ++i) rig.send(ask_of(joined(stem, prompt_of(40, 301 + i)), 1));
    rig.run();
    const std::int64_t num_shared = 2000 / kPage * kPage;
    // The first request continues from a state in the middle of the stem, the others from its end.
    EXPECT_EQ(rig.workers.num_tokens_run() - before, 2040 - 1024 + 7 * (2040 - num_shared));
}

TEST_F(Checkpoints, SamplesOfACachedPromptWithoutAStateComputeItOnce) {
    run(ask_of(joined(prompt_of(2000), prompt_of(500, 300)), 4));
    const std::int64_t before = rig.workers.num_tokens_run();
    for (int i = 0; i < 16; ++i) rig.send(ask_of(joined(prompt_of(2000), prompt_of(1001, 301)), 1));
    rig.run();
    const std::int64_t num_run = rig.workers.num_tokens_run() - before;
    EXPECT_LE(num_run, 3001 - 1024 + 15 * kPage);
}

TEST(CheckpointsOfRequests, WithoutPlacesEveryPromptIsComputedWhole) {
    Rig rig(model_of(0));
    const Ask ask = ask_of(prompt_of(160), 40);
    for (int i = 0; i < 2; ++i) {
        const RequestKey key = rig.send(ask);
        rig.run();
        expect_all(rig, key, ask);
        EXPECT_EQ(rig.of(key).counts->cached_tokens, 0);
        EXPECT_EQ(rig.of(key).counts->replayed_tokens, i == 0 ? 0 : 144);
    }
    EXPECT_EQ(rig.status().checkpoints->places_total, 0);
    EXPECT_EQ(rig.status().checkpoints->saved_total, 0);
}

TEST(CheckpointsOfRequests, MorePlacesThanPagesAreNotManaged) {
    Rig rig(model_of(1000, /*num_pages=*/30));
    EXPECT_EQ(rig.status().checkpoints->places_total, 30);
}

// The end of a page may be among a step's drafts: the state there is saved if the drafts up to it
// are right. So the next turn computes no more than without drafts.
TEST(CheckpointsOfDrafts, ADecodesStateIsSavedWhereverItsDraftsPassAPagesEnd) {
    // With 178, the draft before the last page's end is wrong, and the next step saves the state
    // there.
    for (const std::size_t wrong_every : {0u, 7u, 11u, 16u, 178u}) {
        for (const std::int64_t num_places : {8, 2, 1}) {
            SCOPED_TRACE(
                testing::Message()
                << "every " << wrong_every << " wrong, " << num_places << " places"
            );
            Rig rig(model_of(num_places), {.drafts_max = 6});
            Ask ask = ask_of(prompt_of(40), 200);
            ask.draft_ids = rig.expected(ask).tokens;
            for (std::size_t i = 5; wrong_every > 0 && i < ask.draft_ids.size(); i += wrong_every)
                ask.draft_ids[i] = static_cast<TokenId>((raw(ask.draft_ids[i]) + 1) % 1000);
            const RequestKey key = rig.send(ask);
            rig.run();
            expect_all(rig, key, ask);
            EXPECT_GT(rig.of(key).counts->drafts->accepted, 20);
            const std::int64_t before = rig.workers.num_tokens_run();
            const std::vector<TokenId> turn = joined(ask.prompt, rig.of(key).tokens);
            const Ask next = ask_of(joined(turn, prompt_of(8, 300)), 1);
            const RequestKey then = rig.send(next);
            rig.run();
            expect_all(rig, then, next);
            const std::int64_t num_run = rig.workers.num_tokens_run() - before;
            if (num_places == 8) {
                EXPECT_EQ(num_run, 248 - 224) << "the state after 224 tokens";
            }
            EXPECT_EQ(rig.workers.problems(), std::vector<std::string>{});
        }
    }
}

// A step reserves a place for a state among its drafts. When the request ends or is retracted
// during the step, the place must become free.
TEST(CheckpointsOfDrafts, AnAbortOrARetractionAmidDraftsKeepsNoPlace) {
    for (const bool is_aborted : {true, false}) {
        Rig rig(model_of(4), {.drafts_max = 6});
        Ask ask = ask_of(prompt_of(40), 200);
        ask.draft_ids = rig.expected(ask).tokens;
        const RequestKey key = rig.send(ask);
        rig.turn();
        for (int i = 0; i < 9; ++i) rig.step();
        if (is_aborted) {
            rig.control(messages::EndRequests{.keys = {key}});
        } else {
            rig.control(messages::PauseGeneration{
                .call = CallId{1}, .mode = messages::PauseMode::kRetract});
            rig.run();
            rig.control(messages::ContinueGeneration{.call = CallId{2}});
        }
        rig.run();
        if (!is_aborted) expect_all(rig, key, ask);
        rig.control(messages::FlushCache{.call = CallId{3}, .timeout_ms = 20});
        rig.run();
        EXPECT_EQ(rig.status().checkpoints->places_free, 4);
        EXPECT_EQ(rig.workers.problems(), std::vector<std::string>{});
    }
}

// Workers keep the inputs of at most kStateDraftsMax drafts.
TEST(CheckpointsOfDrafts, AStepHasNoMoreDraftsThanWorkersKeep) {
    Rig rig(
        {.num_pages = 4096,
         .page_size = kPage,
         .num_slots = 64,
         .context_len = 16384,
         .state_bytes = 64,
         .num_checkpoints = 8},
        {.tokens_per_step_max = 4096, .running_max = 64, .drafts_max = 32}
    );
    std::vector<std::pair<RequestKey, Ask>> sent;
    for (int i = 0; i < 40; ++i) {
        Ask ask = ask_of(prompt_of(5, 100 + i), 60);
        ask.draft_ids = rig.expected(ask).tokens;
        sent.emplace_back(rig.send(ask), ask);
    }
    rig.run();
    for (const auto& [key, ask] : sent) expect_all(rig, key, ask);
    std::int64_t num_most = 0;
    for (const messages::StepPlan& plan : rig.workers.plans()) {
        std::int64_t num = 0;
        for (const messages::PlanRow& row : plan.rows) num += row.num_drafted.value_or(0);
        num_most = std::max(num_most, num);
    }
    EXPECT_EQ(num_most, messages::kStateDraftsMax);
}

// Other requests use up the places between two turns.
class CheckpointsOfConversations : public Checkpoints {
  protected:
    Ask turn_of(unsigned conversation, std::vector<TokenId> prompt) {
        Ask ask = ask_of(std::move(prompt), 40);
        ask.conversation = messages::ConversationId{conversation};
        return ask;
    }
    void run_others() {
        for (int i = 0; i < 20; ++i) run(ask_of(prompt_of(100, 300 + num_others_++), 40));
    }
    // Runs the turn after `before`. Returns how many of its tokens were cached.
    std::int64_t cached_by_next_turn(const Ask& before) {
        std::vector<TokenId> prompt = joined(before.prompt, rig.expected(before).tokens);
        Ask next = ask_of(joined(std::move(prompt), prompt_of(20, 900)), 2);
        next.conversation = before.conversation;
        run(next);
        return cached();
    }

  private:
    int num_others_ = 0;
};

TEST_F(CheckpointsOfConversations, ATurnContinuesFromTheStateAfterTheTurnBefore) {
    const Ask turn = turn_of(7, prompt_of(200));
    run(turn);
    Ask other = turn_of(0, prompt_of(200, 800));
    other.conversation.reset();
    run(other);
    run_others();
    EXPECT_EQ(cached_by_next_turn(turn), 224) << "239 tokens have KV: 14 pages";
    EXPECT_EQ(cached_by_next_turn(other), 0);
    EXPECT_EQ(replayed(), 224) << "its pages are there, and no state";
}

TEST_F(CheckpointsOfConversations, AnEndedConversationHoldsNoState) {
    const Ask turn = turn_of(7, prompt_of(200));
    run(turn);
    rig.control(messages::EndConversations{.ids = {messages::ConversationId{7}}});
    run_others();
    EXPECT_EQ(cached_by_next_turn(turn), 0);
}

// Held states may use half of the eight places.
TEST_F(CheckpointsOfConversations, TheOldestGivesItsStateUpWhenTheShareIsFull) {
    std::vector<Ask> turns;
    for (unsigned i = 0; i < 6; ++i) {
        turns.push_back(turn_of(10 + i, prompt_of(200, 30 + 10 * static_cast<int>(i))));
        run(turns.back());
    }
    run_others();
    for (const std::size_t i : {5u, 4u, 3u, 2u}) EXPECT_EQ(cached_by_next_turn(turns[i]), 224) << i;
    for (const std::size_t i : {1u, 0u}) EXPECT_EQ(cached_by_next_turn(turns[i]), 0) << i;
}

// Two conversations may hold the same state, and one of them may end.
TEST_F(CheckpointsOfConversations, AStateIsHeldAsLongAsAConversationHoldsIt) {
    const Ask turn = turn_of(7, prompt_of(200));
    const Ask same = turn_of(8, prompt_of(200));
    run(turn);
    run(same);
    rig.control(messages::EndConversations{.ids = {messages::ConversationId{7}}});
    run_others();
    EXPECT_EQ(cached_by_next_turn(same), 224);
    rig.control(messages::FlushCache{.call = CallId{1}});
    rig.run();
    run(turn);
    run_others();
    EXPECT_EQ(cached_by_next_turn(turn), 224) << "a flush leaves nothing that is held";
}

TEST_F(Checkpoints, ALongPromptHasStatesInItsMiddleAsLongAsPlacesAreFree) {
    run(ask_of(prompt_of(5000), 1));
    EXPECT_EQ(status().saved_total, 5) << "after 1024, 2048, 3072 and 4096, and before its end";
    EXPECT_EQ(status().places_free, 3);
    run(ask_of(prompt_of(5000, 7), 1));
    EXPECT_EQ(status().evicted_total, 1) << "the ends of prompts go before";
    EXPECT_EQ(run(ask_of(prompt_of(5000), 1)), 5000 - 4992);
}

TEST(CheckpointsOfRequests, ARetractedRequestComesBackThroughACheckpoint) {
    Rig rig(model_of(8, /*num_pages=*/12));
    std::vector<std::pair<RequestKey, Ask>> sent;
    for (int i = 0; i < 3; ++i) {
        const Ask ask = ask_of(prompt_of(40, 100 + i), 80);
        sent.emplace_back(rig.send(ask), ask);
    }
    rig.run();
    for (const auto& [key, ask] : sent) expect_all(rig, key, ask);
    EXPECT_GT(rig.status().retractions_total, 0);
    EXPECT_GT(rig.status().checkpoints->restored_total, 0);
    EXPECT_EQ(rig.workers.problems(), std::vector<std::string>{});
}

// A decode renews its own checkpoint: however many requests run, prompts keep half of the places.
TEST(CheckpointsOfRequests, DecodesDoNotEvictTheEndsOfPrompts) {
    Rig rig(model_of(6));
    const Ask first = ask_of(prompt_of(160), 1);
    rig.send(first);
    rig.run();
    for (int i = 0; i < 2; ++i) rig.send(ask_of(prompt_of(10, 200 + i), 200));
    rig.run();
    EXPECT_EQ(rig.status().checkpoints->evicted_total, 0);
    const RequestKey again = rig.send(first);
    rig.run();
    EXPECT_EQ(rig.of(again).counts->cached_tokens, 144);
}

TEST(CheckpointsOfRequests, AFlushOrAReleaseDropsAll) {
    Rig rig(model_of(6));
    const Ask ask = ask_of(prompt_of(160), 40);
    rig.send(ask);
    rig.run();
    EXPECT_LT(rig.status().checkpoints->places_free, 6);
    rig.control(messages::FlushCache{.call = CallId{1}, .timeout_ms = 100});
    rig.run();
    EXPECT_EQ(rig.status().checkpoints->places_free, 6);
    rig.send(ask);
    rig.run();
    rig.control(messages::PauseGeneration{
        .call = CallId{2}, .timeout_ms = 100, .mode = messages::PauseMode::kRetract});
    rig.run();
    rig.control(messages::ReleaseMemory{
        .call = CallId{3}, .timeout_ms = 100, .tags = {messages::MemoryTag::kKvCache}});
    rig.run();
    EXPECT_EQ(rig.status().checkpoints->places_free, 6);
    rig.control(messages::ResumeMemory{.call = CallId{4}, .timeout_ms = 100});
    rig.run();
    rig.control(messages::ContinueGeneration{.call = CallId{5}, .timeout_ms = 100});
    const RequestKey again = rig.send(ask);
    rig.run();
    expect_all(rig, again, ask);
    EXPECT_EQ(rig.of(again).counts->cached_tokens, 0);
    EXPECT_EQ(rig.workers.problems(), std::vector<std::string>{});
}

class CheckpointsOfVersions : public UpdateTest {
  protected:
    CheckpointsOfVersions() {
        FakeModel model = model_of(8);
        model.tp = 2;
        rig = Rig(model);
    }
    std::int64_t cached_for(messages::KvTolerance tolerance) {
        Ask ask = ask_of(prompt_of(160), 1);
        ask.kv_tolerance = tolerance;
        const RequestKey key = rig.send(ask);
        rig.run();
        return rig.of(key).counts->cached_tokens;
    }
};

TEST_F(CheckpointsOfVersions, P9_AStateBelongsToTheVersionThatComputedIt) {
    EXPECT_EQ(cached_for(messages::KvTolerance::kNever), 0);
    EXPECT_EQ(cached_for(messages::KvTolerance::kNever), 144);
    update(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep, Epoch{2});
    EXPECT_EQ(cached_for(messages::KvTolerance::kKeep), 144);
    EXPECT_EQ(cached_for(messages::KvTolerance::kNever), 0);
    EXPECT_EQ(cached_for(messages::KvTolerance::kNever), 144) << "of the new version";
    EXPECT_EQ(rig.workers.problems(), std::vector<std::string>{});
}

TEST(CheckpointsOfRequests, AStateThatIsNotFiniteIsRestoredByNobody) {
    FakeModel model = model_of(8);
    model.overflowing = TokenId{77};
    Rig rig(model);
    const std::vector<TokenId> bad = joined(joined(prompt_of(40), {TokenId{77}}), prompt_of(40, 7));
    for (int i = 0; i < 3; ++i) {
        const RequestKey key = rig.send(ask_of(bad, 4));
        rig.run();
        EXPECT_EQ(error_of(rig, key), "not_finite");
        EXPECT_LT(rig.of(key).counts->cached_tokens, 41);
    }
    EXPECT_EQ(rig.workers.problems(), std::vector<std::string>{});
}

}  // namespace
}  // namespace pitstop::scheduler
