// A commit that replaces an adapter: the version with which open requests continue.
#include "tests/scheduler_proc/adapters_fixture.h"

#include <gtest/gtest.h>

#include <random>

namespace pitstop::scheduler {
namespace {

using messages::AdapterId;
using messages::AdapterPolicy;

class AdapterPolicies : public AdaptersTest {};

TEST_F(AdapterPolicies, P3_KeptRequestsContinueWithTheNewVersion) {
    load("a", 3);
    load("b", 4);
    const Ask ask = ask_of("a");
    const RequestKey kept = rig.send(ask);
    const RequestKey other = rig.send(ask_of("b"));
    const RequestKey alone = rig.send(ask_of(""));
    rig.turn();
    for (int i = 0; i < 6; ++i) rig.step();
    ASSERT_FALSE(rig.of(kept).tokens.empty());
    const messages::UpdatePart committed = load("a", 5, AdapterPolicy::kKeep);
    EXPECT_EQ(committed.outcome.num_kept, 3);
    EXPECT_EQ(committed.outcome.num_recomputed, 0);
    EXPECT_EQ(rig.status().adapters[0].num_requests, 1);
    EXPECT_EQ(rig.status().adapters[0].num_older, 0);
    rig.run();
    const Received& got = rig.of(kept);
    EXPECT_EQ(versions_of(got), (std::vector<std::int64_t>{3, 5}));
    EXPECT_EQ(got.tokens, by_spans(ask, got));
    EXPECT_EQ(std::ssize(got.tokens), 24);
    EXPECT_EQ(got.spans[0].adapter->name, "a");
    EXPECT_EQ(got.spans.back().adapter->digest.size(), 32u);
    EXPECT_EQ(got.spans[0].kv_min_adapter, Epoch{3});
    EXPECT_EQ(got.spans.back().kv_min_adapter, Epoch{3}) << "from its KV";
    EXPECT_EQ(raw(got.adapter->version), 5);
    EXPECT_EQ(got.counts->retractions, 0);
    EXPECT_EQ(rig.status().spanning_requests_total, 1);
    EXPECT_EQ(rig.of(other).tokens, expected(ask_of("b"), 4).tokens);
    EXPECT_EQ(rig.of(alone).tokens, expected(ask_of(""), 0).tokens);
    EXPECT_FALSE(rig.of(alone).spans[0].adapter);
    EXPECT_EQ(resident(), (std::set{AdapterId{3}, AdapterId{4}, AdapterId{5}}));
    // The request's KV has two versions, so a later request cannot use it.
    Ask next = ask;
    next.prompt.insert(next.prompt.end(), got.tokens.begin(), got.tokens.end());
    const RequestKey later = rig.send(next);
    rig.run();
    EXPECT_EQ(rig.of(later).counts->cached_tokens, 0);
    EXPECT_EQ(rig.of(later).tokens, expected(next, 5).tokens);
}

TEST_F(AdapterPolicies, P3_RecomputedRequestsAttendToTheNewVersionAlone) {
    load("a", 3);
    const Ask ask = ask_of("a");
    const RequestKey key = rig.send(ask);
    const RequestKey alone = rig.send(ask_of(""));
    rig.turn();
    for (int i = 0; i < 6; ++i) rig.step();
    const messages::UpdatePart committed = load("a", 5, AdapterPolicy::kRecompute);
    EXPECT_EQ(committed.outcome.num_kept, 1);
    EXPECT_EQ(committed.outcome.num_recomputed, 1);
    rig.run();
    const Received& got = rig.of(key);
    EXPECT_EQ(versions_of(got), (std::vector<std::int64_t>{3, 5}));
    EXPECT_EQ(got.tokens, by_spans(ask, got));
    EXPECT_EQ(got.spans.back().kv_min_adapter, Epoch{5});
    EXPECT_EQ(got.counts->retractions, 1);
    EXPECT_EQ(rig.of(alone).counts->retractions, 0);
    EXPECT_EQ(rig.of(alone).tokens, expected(ask_of(""), 0).tokens);
    Ask next = ask;
    next.prompt.insert(next.prompt.end(), got.tokens.begin(), got.tokens.end());
    const RequestKey later = rig.send(next);
    rig.run();
    EXPECT_GT(rig.of(later).counts->cached_tokens, 30) << "all its KV is of the new version";
    EXPECT_EQ(rig.of(later).tokens, expected(next, 5).tokens);
}

TEST_F(AdapterPolicies, P3_ThePolicyIsForRequestsOfTheVersionThatIsReplaced) {
    Rig narrow({.num_pages = 128, .num_slots = 2});
    std::swap(rig, narrow);
    load("a", 3);
    const RequestKey first = rig.send(ask_of("a"));
    rig.turn();
    for (int i = 0; i < 4; ++i) rig.step();
    load("a", 4, AdapterPolicy::kFinish);
    const RequestKey second = rig.send(ask_of("a", 200));
    const RequestKey waits = rig.send(ask_of("a", 300));
    rig.turn();
    for (int i = 0; i < 4; ++i) rig.step();
    load("a", 5, AdapterPolicy::kKeep);
    EXPECT_EQ(rig.status().adapters[0].num_requests, 2);
    EXPECT_EQ(rig.status().adapters[0].num_older, 1);
    rig.run();
    EXPECT_EQ(rig.of(first).tokens, expected(ask_of("a"), 3).tokens) << "it was to finish";
    EXPECT_EQ(versions_of(rig.of(second)), (std::vector<std::int64_t>{4, 5}));
    EXPECT_EQ(versions_of(rig.of(waits)), std::vector<std::int64_t>{5});
    EXPECT_EQ(rig.of(waits).tokens, expected(ask_of("a", 300), 5).tokens);
    EXPECT_EQ(resident(), (std::set{AdapterId{4}, AdapterId{5}})) << "4 is retained";
}

TEST_F(AdapterPolicies, P3_ScoresAreOfOneVersionWhateverThePolicy) {
    for (const AdapterPolicy policy : {AdapterPolicy::kKeep, AdapterPolicy::kRecompute}) {
        SCOPED_TRACE(messages::name_of(policy));
        Rig slow({.num_pages = 128}, {.tokens_per_step_max = 8});
        std::swap(rig, slow);
        load("a", 3);
        Ask ask = ask_of("a");
        ask.prompt = prompt_of(50);
        ask.logprobs = {.enabled = true, .prompt_start = 0};
        const RequestKey key = rig.send(ask);
        rig.turn();
        for (int i = 0; i < 2; ++i) rig.step();
        ASSERT_TRUE(rig.of(key).tokens.empty());
        EXPECT_EQ(load("a", 5, policy).outcome.num_recomputed, 1);
        rig.run();
        EXPECT_EQ(versions_of(rig.of(key)), std::vector<std::int64_t>{5});
        EXPECT_EQ(rig.of(key).prompt, expected(ask, 5).prompt);
        EXPECT_EQ(rig.of(key).tokens, expected(ask, 5).tokens);
    }
}

// Two requests with equal tokens, one 30 steps ahead when the commit comes. The old version has
// computed a page for the first request; the new version computes the same page for the second.
TEST_F(AdapterPolicies, P6_EqualTokensOfTwoVersionsAreNotTakenForEachOther) {
    Rig monotone({.num_pages = 128, .vocab_size = 1});
    std::swap(rig, monotone);
    load("a", 3);
    Ask ask = ask_of("a");
    ask.prompt.assign(13, TokenId{0});
    ask.max_new_tokens = 60;
    ask.sampling.ignore_eos = true;
    const RequestKey ahead = rig.send(ask);
    rig.turn();
    for (int i = 0; i < 30; ++i) rig.step();
    const RequestKey behind = rig.send(ask);
    rig.turn();
    for (int i = 0; i < 8; ++i) rig.step();
    load("a", 5, AdapterPolicy::kKeep);
    rig.run();  // the workers check the KV that they read
    for (const RequestKey key : {ahead, behind}) {
        EXPECT_EQ(versions_of(rig.of(key)), (std::vector<std::int64_t>{3, 5}));
        EXPECT_EQ(std::ssize(rig.of(key).tokens), 60);
    }
}

// Requests come, are cancelled and retracted, while two names are loaded, replaced and unloaded
// under every policy. The workers check that no row reads KV or a state of another version or
// token.
TEST_F(AdapterPolicies, P3_P9_RandomLoadsMixNothing) {
    for (std::uint64_t seed = 1; seed <= 24; ++seed) {
        SCOPED_TRACE(seed);
        FakeModel model{.num_pages = 40, .num_slots = 6};
        if (seed % 2 == 0) {
            model.state_bytes = 64;
            model.num_checkpoints = 8;
        }
        Rig random(model, {.tokens_per_step_max = 24});
        std::swap(rig, random);
        std::mt19937_64 draw(seed);
        const auto pick = [&](int num) {
            return static_cast<int>(draw() % static_cast<unsigned>(num));
        };
        std::vector<std::pair<RequestKey, Ask>> sent;
        std::uint64_t id = 2;
        for (int i = 0; i < 300; ++i) {
            const std::string name(1, static_cast<char>('a' + pick(2)));
            const int what = pick(40);
            if (what < 8) {
                Ask ask{
                    .prompt = prompt_of(1 + pick(40), 100 + 100 * pick(2)),
                    .max_new_tokens = 1 + pick(30),
                    .adapter = pick(3) == 0 ? "" : name};
                if (pick(4) == 0) ask.logprobs = {.enabled = true, .prompt_start = 0};
                const RequestKey key = rig.send(ask);
                sent.emplace_back(key, std::move(ask));
            } else if (what < 12) {
                load(name, ++id, static_cast<AdapterPolicy>(pick(3)));
            } else if (what == 12) {
                unload(name);
            } else if (what == 13 && !sent.empty()) {
                const auto at = static_cast<std::size_t>(pick(static_cast<int>(sent.size())));
                rig.control(messages::EndRequests{.keys = {sent[at].first}});
            }
            rig.turn();
            rig.step();
        }
        rig.run();
        for (const auto& [key, ask] : sent) {
            const Received& got = rig.of(key);
            ASSERT_TRUE(got.finish) << raw(key);
            EXPECT_EQ(got.tokens, by_spans(ask, got)) << raw(key);
            for (const messages::Span& span : got.spans) {
                ASSERT_EQ(span.adapter.has_value(), !ask.adapter.empty());
                if (span.adapter) {
                    EXPECT_LE(span.kv_min_adapter, span.adapter->version);
                }
            }
            if (got.prompt && !got.spans.empty() &&
                got.finish->reason == messages::FinishReason::kLength) {
                const auto version = static_cast<std::uint64_t>(versions_of(got)[0]);
                EXPECT_EQ(got.prompt, expected(ask, version).prompt) << raw(key);
            }
        }
        for (const char* const name : {"a", "b"}) unload(name);
        rig.run();
        EXPECT_TRUE(resident().empty());
    }
}

}  // namespace
}  // namespace pitstop::scheduler
