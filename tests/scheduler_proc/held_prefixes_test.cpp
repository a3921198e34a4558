// The pages of conversations between their turns (scheduler_proc/held_prefixes.h).
#include "tests/scheduler_proc/adapters_fixture.h"

#include <gtest/gtest.h>

namespace pitstop::scheduler {
namespace {

constexpr messages::ConversationId kFirst{7};
constexpr messages::ConversationId kSecond{8};

Ask turn_of(std::vector<TokenId> prompt, std::optional<messages::ConversationId> conversation) {
    return {.prompt = std::move(prompt), .max_new_tokens = 8, .conversation = conversation};
}

// The pool has 128 pages of 4 tokens.
class HeldPrefixesTest : public AdaptersTest {
  protected:
    Received& run(const Ask& ask) {
        const RequestKey key = rig.send(ask);
        rig.run();
        return rig.of(key);
    }
    // Runs the next turn, whose prompt is the previous prompt and output and one token more.
    std::int64_t cached_by_next_turn(const Ask& before) {
        std::vector<TokenId> prompt = before.prompt;
        const std::vector<TokenId> output = rig.expected(before).tokens;
        prompt.insert(prompt.end(), output.begin(), output.end());
        prompt.push_back(TokenId{5});
        return run(turn_of(prompt, before.conversation)).counts->cached_tokens;
    }
    // Runs requests without a conversation, new ones in each call, that use each page of the pool
    // once.
    void fill_the_pool() {
        ++num_filled_;
        for (int i = 0; i < 7; ++i) {
            const Received& got = run(turn_of(prompt_of(80, 300 + 90 * i + num_filled_), {}));
            EXPECT_EQ(got.tokens.size(), 8u);
        }
    }

  private:
    int num_filled_ = 0;
};

TEST_F(HeldPrefixesTest, ATurnFindsItsHistoryAfterOthersHaveUsedThePool) {
    const Ask turn = turn_of(prompt_of(60), kFirst);
    run(turn);
    fill_the_pool();
    EXPECT_EQ(cached_by_next_turn(turn), 64);  // 67 known tokens of 68, in whole pages
    const Ask other = turn_of(prompt_of(60, 900), {});
    run(other);
    fill_the_pool();
    EXPECT_EQ(cached_by_next_turn(other), 0);
}

TEST_F(HeldPrefixesTest, AnEndedConversationHoldsNothing) {
    const Ask turn = turn_of(prompt_of(60), kFirst);
    run(turn);
    rig.control(messages::EndConversations{.ids = {kSecond, kFirst}});
    fill_the_pool();
    EXPECT_EQ(cached_by_next_turn(turn), 0);
}

// Conversations may hold half of the pool, 64 pages, and each turn has 16 in the cache.
TEST_F(HeldPrefixesTest, TheOldestIsGivenUpWhenTheShareIsFull) {
    std::vector<Ask> turns;
    for (int i = 0; i < 5; ++i) {
        turns.push_back(
            turn_of(prompt_of(60, 50 + 70 * i), messages::ConversationId{10U + unsigned(i)})
        );
        run(turns.back());
    }
    fill_the_pool();
    rig.now += Conversations::kPatience;  // no turn waits for another conversation
    EXPECT_EQ(cached_by_next_turn(turns[4]), 64);
    EXPECT_EQ(cached_by_next_turn(turns[1]), 64);
    EXPECT_EQ(cached_by_next_turn(turns[0]), 0);
}

TEST_F(HeldPrefixesTest, AfterAFlushWhatWasHeldTakesNoShare) {
    run(turn_of(prompt_of(60), kFirst));
    rig.control(messages::FlushCache{});
    rig.run();
    std::vector<Ask> turns;
    for (int i = 0; i < 4; ++i) {  // together they hold the whole share
        turns.push_back(
            turn_of(prompt_of(60, 50 + 70 * i), messages::ConversationId{10U + unsigned(i)})
        );
        run(turns.back());
    }
    fill_the_pool();
    run(turn_of(prompt_of(8, 990), kFirst));
    fill_the_pool();
    EXPECT_EQ(cached_by_next_turn(turns[1]), 64);
}

TEST_F(HeldPrefixesTest, RunningRequestsGetHeldPagesWhenTheyNeedThem) {
    const Ask turn = turn_of(prompt_of(60), kFirst);
    run(turn);
    const RequestKey large = rig.send(turn_of(prompt_of(240, 300), {}));
    const RequestKey another = rig.send(turn_of(prompt_of(240, 600), {}));
    rig.run();
    for (const RequestKey key : {large, another}) {
        EXPECT_EQ(rig.of(key).tokens.size(), 8u);
        EXPECT_EQ(rig.of(key).counts->retractions, 0);
    }
    EXPECT_LT(rig.status().pages_held, 16) << "an evicted page is not held";
    EXPECT_LT(cached_by_next_turn(turn), 64);
    fill_the_pool();  // forgets the other held pages without harm
}

// P9: a turn's kv_tolerance decides whether older KV is used. The counts include the unused KV.
TEST_F(HeldPrefixesTest, P9_AnUpdateLeavesHeldPagesToTurnsThatTolerateThem) {
    Ask turn = turn_of(prompt_of(60), kFirst);
    turn.kv_tolerance = messages::KvTolerance::kKeep;
    run(turn);
    update(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep, Epoch{2});
    fill_the_pool();
    turn = turn_of(prompt_of(62), kFirst);
    turn.kv_tolerance = messages::KvTolerance::kKeep;
    const Received& tolerant = run(turn);
    EXPECT_EQ(tolerant.counts->cached_tokens, 60);
    EXPECT_EQ(tolerant.counts->stale_tokens, 0);
    turn.kv_tolerance = messages::KvTolerance::kNever;
    const Received& strict = run(turn);
    EXPECT_EQ(strict.counts->cached_tokens, 0);
    EXPECT_EQ(strict.counts->stale_tokens, 60);
}

// The share is half of the pool. Pages that their own turns refuse are no longer held.
TEST_F(HeldPrefixesTest, P9_AnUpdateEndsTheHoldOfPagesThatTheirTurnsRefuse) {
    std::vector<Ask> turns;
    for (int i = 0; i < 4; ++i) {
        turns.push_back(
            turn_of(prompt_of(60, 50 + 70 * i), messages::ConversationId{10U + unsigned(i)})
        );
        turns.back().kv_tolerance = i == 0   ? messages::KvTolerance::kKeep
                                    : i == 1 ? messages::KvTolerance::kMaxLag
                                             : messages::KvTolerance::kNever;
        turns.back().kv_max_lag = i == 1 ? 1 : 0;
        run(turns.back());
    }
    EXPECT_EQ(rig.status().pages_held, 64);
    update(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep, Epoch{2});
    EXPECT_EQ(rig.status().pages_held, 32);
    update(
        messages::UpdateMode::kStaged, messages::KvPolicy::kKeep, Epoch{3}, messages::UpdateId{2}
    );
    EXPECT_EQ(rig.status().pages_held, 16);
    fill_the_pool();
    turns[0].prompt = prompt_of(62, 50);
    EXPECT_EQ(run(turns[0]).counts->cached_tokens, 60);
    turns[2].prompt = prompt_of(62, 50 + 140);
    turns[2].kv_tolerance = messages::KvTolerance::kKeep;
    EXPECT_EQ(run(turns[2]).counts->cached_tokens, 0);
}

// A turn that continues under new weights has pages of both versions. Where the older pages are
// refused, the newer ones after them are of no use.
TEST_F(HeldPrefixesTest, P9_APrefixWhoseFirstPagesAreRefusedIsNotHeld) {
    Ask turn = turn_of(prompt_of(60), kFirst);
    turn.kv_tolerance = messages::KvTolerance::kMaxLag;
    turn.kv_max_lag = 1;
    run(turn);
    update(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep, Epoch{2});
    turn.prompt = prompt_of(100);
    run(turn);
    EXPECT_EQ(rig.status().pages_held, 26);
    update(
        messages::UpdateMode::kStaged, messages::KvPolicy::kKeep, Epoch{3}, messages::UpdateId{2}
    );
    EXPECT_EQ(rig.status().pages_held, 0);
}

// A turn that has never run, or whose pages the session refuses, does not replace the held pages.
TEST_F(HeldPrefixesTest, ATurnWithoutPagesLeavesThoseOfTheTurnBefore) {
    const Ask turn = turn_of(prompt_of(60), kFirst);
    run(turn);
    EXPECT_EQ(rig.status().pages_held, 16);
    rig.control(messages::PauseGeneration{.mode = messages::PauseMode::kInPlace});
    const RequestKey waits = rig.send(turn_of(prompt_of(70), kFirst));
    rig.run();
    rig.control(messages::EndRequests{.keys = {waits}, .cause = messages::EndCause::kAbort});
    rig.run();
    EXPECT_EQ(rig.of(waits).finish->reason, messages::FinishReason::kAbort);
    EXPECT_EQ(rig.status().pages_held, 16);
    rig.control(messages::ContinueGeneration{});
    fill_the_pool();
    EXPECT_EQ(cached_by_next_turn(turn), 64);
}

// No later turn gets a replaced or unloaded version, so pages of that version are not held.
TEST_F(HeldPrefixesTest, P9_AVersionThatServesNoMoreHoldsNothing) {
    load("a", 3);
    load("b", 4);
    std::vector<Ask> turns;
    for (int i = 0; i < 3; ++i) {
        turns.push_back(
            turn_of(prompt_of(60, 50 + 70 * i), messages::ConversationId{10U + unsigned(i)})
        );
        if (i < 2) turns.back().adapter = i == 0 ? "a" : "b";
        run(turns.back());
    }
    EXPECT_EQ(rig.status().pages_held, 48);
    load("a", 5);
    EXPECT_EQ(rig.status().pages_held, 32);
    EXPECT_TRUE(unload("b").verdict.is_done());
    EXPECT_EQ(rig.status().pages_held, 16) << "the model's";
    run(turns[0]);
    EXPECT_EQ(rig.status().pages_held, 32);
    roll_back("a", 6);
    EXPECT_EQ(rig.status().pages_held, 16);
    EXPECT_EQ(cached_by_next_turn(turns[2]), 64);
}

// The turn ends with the older version (kFinish), or continues under the new one (kKeep).
TEST_F(HeldPrefixesTest, P9_ATurnOfAnOlderVersionHoldsNothing) {
    using messages::AdapterPolicy;
    for (const AdapterPolicy policy : {AdapterPolicy::kFinish, AdapterPolicy::kKeep}) {
        SCOPED_TRACE(messages::name_of(policy));
        Rig fresh({.tp = 2, .num_pages = 128});
        std::swap(rig, fresh);
        load("a", 3);
        Ask turn = turn_of(prompt_of(60), kFirst);
        turn.adapter = "a";
        const RequestKey key = rig.send(turn);
        rig.turn();
        for (int i = 0; i < 4; ++i) rig.step();
        ASSERT_FALSE(rig.of(key).tokens.empty());
        load("a", 4, policy);
        rig.run();
        EXPECT_EQ(rig.of(key).tokens.size(), 8u);
        EXPECT_EQ(rig.status().pages_held, 0);
        run(turn);
        EXPECT_EQ(rig.status().pages_held, 16);
    }
}

TEST(HeldPrefixes, AHoldOfAnEvictedNodeIsNotOneOfTheNodeThatGotItsPage) {
    PageAllocator allocator(2);
    PrefixCache cache(2, 1);
    HeldPrefixes held(1);
    const auto add = [&](TokenId token) {
        PageId page{};
        EXPECT_TRUE(allocator.allocate({&page, 1}));
        cache.insert(
            {.page = page, .tokens = {&token, 1}, .epochs = {Epoch{1}, Epoch{1}}, .step = StepId{1}}
        );
        return page;
    };
    const PageId first = add(TokenId{1});
    held.hold({kFirst}, {&first, 1}, cache);
    cache.unlock({&first, 1});
    EXPECT_EQ(cache.num_holds(), 1);
    EXPECT_EQ(cache.evict(1, allocator), 1);
    EXPECT_EQ(cache.num_holds(), 0);
    const PageId again = add(TokenId{2});
    EXPECT_EQ(again, first);
    held.hold({kSecond}, {&again, 1}, cache);  // drops the first conversation's hold
    cache.unlock({&again, 1});
    const PageId other = add(TokenId{3});
    cache.unlock({&other, 1});
    EXPECT_EQ(cache.evict(1, allocator), 1);
    EXPECT_TRUE(cache.holds(again));  // held, although it was used before `other`
    EXPECT_EQ(cache.audit(), std::nullopt);
}

}  // namespace
}  // namespace pitstop::scheduler
