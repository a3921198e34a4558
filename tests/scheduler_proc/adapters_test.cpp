// Adapters: the version that each request uses. No request may read KV of another version.
#include "tests/scheduler_proc/adapters_fixture.h"

#include <gtest/gtest.h>

namespace pitstop::scheduler {
namespace {

using messages::AdapterId;

TEST_F(AdaptersTest, P6_EachRequestGetsItsOwnWhateverRunsWithIt) {
    load("a", 3);
    load("b", 4);
    const std::vector<std::pair<Ask, std::uint64_t>> sent{
        {ask_of("a"), 3}, {ask_of(""), 0}, {ask_of("b"), 4}, {ask_of("a", 200), 3}};
    std::vector<RequestKey> got;
    for (const auto& [ask, id] : sent) got.push_back(rig.send(ask));
    rig.run();
    for (std::size_t i = 0; i < sent.size(); ++i) {
        const auto& [ask, id] = sent[i];
        EXPECT_EQ(rig.of(got[i]).tokens, expected(ask, id).tokens) << i;
        ASSERT_EQ(rig.of(got[i]).adapter.has_value(), id != 0);
        if (id == 0) continue;
        EXPECT_EQ(rig.of(got[i]).adapter->name, ask.adapter);
        EXPECT_EQ(raw(rig.of(got[i]).adapter->version), static_cast<std::int64_t>(id));
        EXPECT_EQ(rig.of(got[i]).adapter->label, "step-2");
        EXPECT_EQ(rig.of(got[i]).adapter->digest.size(), 32u);
    }
}

TEST_F(AdaptersTest, P3_ACommitIsForRequestsThatComeAfterIt) {
    load("a", 3);
    const Ask ask = ask_of("a");
    const RequestKey before = rig.send(ask);
    const RequestKey waits = rig.send(ask_of("a", 200));
    rig.turn();
    for (int i = 0; i < 4; ++i) rig.step();
    load("a", 4);
    const RequestKey after = rig.send(ask);
    rig.turn();
    EXPECT_EQ(resident(), (std::set{AdapterId{3}, AdapterId{4}}));
    const auto status = rig.status().adapters;
    ASSERT_EQ(status.size(), 1u);
    EXPECT_EQ(raw(status[0].adapter.version), 4);
    EXPECT_EQ(status[0].num_requests, 1);
    EXPECT_EQ(status[0].num_older, 2);
    rig.run();
    EXPECT_EQ(rig.of(before).tokens, expected(ask, 3).tokens);
    EXPECT_EQ(rig.of(waits).tokens, expected(ask_of("a", 200), 3).tokens);
    EXPECT_EQ(rig.of(after).tokens, expected(ask, 4).tokens);
    EXPECT_EQ(raw(rig.of(before).adapter->version), 3);
    EXPECT_EQ(raw(rig.of(after).adapter->version), 4);
    EXPECT_EQ(resident(), (std::set{AdapterId{3}, AdapterId{4}})) << "retained for a rollback";
    ASSERT_TRUE(stage("a", 5).ok);
    EXPECT_EQ(resident(), std::set{AdapterId{4}}) << "the next stage gives it up";
}

TEST_F(AdaptersTest, P9_APrefixIsOfTheVersionThatComputedIt) {
    load("a", 3);
    const auto cached = [&](const Ask& ask, std::uint64_t id) {
        const RequestKey key = rig.send(ask);
        rig.run();
        EXPECT_EQ(rig.of(key).tokens, expected(ask, id).tokens);
        return rig.of(key).counts->cached_tokens;
    };
    const Ask with = ask_of("a");
    const Ask alone = ask_of("");
    EXPECT_EQ(cached(alone, 0), 0);
    EXPECT_EQ(cached(alone, 0), 12);
    EXPECT_EQ(cached(with, 3), 0);
    EXPECT_EQ(cached(with, 3), 12);
    load("a", 4);
    EXPECT_EQ(cached(with, 4), 0) << "the name is the same, the weights are not";
    EXPECT_EQ(cached(alone, 0), 12) << "the model's prefixes stay";
}

TEST_F(AdaptersTest, P9_AnUpdateOfTheModelAgesTheAdaptersPrefixes) {
    load("a", 3);
    const Ask ask = ask_of("a");
    rig.send(ask);
    rig.run();
    rig.workers.staged_weights = kNewWeights;
    ASSERT_TRUE(update(
                    messages::UpdateMode::kStaged,
                    messages::KvPolicy::kKeep,
                    Epoch{2},
                    messages::UpdateId{4}
    )
                    .ok);
    const RequestKey key = rig.send(ask);
    rig.run();
    EXPECT_EQ(rig.of(key).counts->cached_tokens, 0);
    EXPECT_EQ(rig.of(key).tokens, expected(ask, 3).tokens);
    EXPECT_EQ(raw(rig.of(key).adapter->version), 3);
    EXPECT_EQ(rig.of(key).spans[0].epoch, Epoch{2});
}

TEST_F(AdaptersTest, P4_AnUnloadEndsNoRequest) {
    load("a", 3);
    load("b", 4);
    const Ask ask = ask_of("a");
    const RequestKey open = rig.send(ask);
    rig.turn();
    rig.step();
    const messages::AdapterPart unloaded = unload("a");
    ASSERT_TRUE(unloaded.verdict.is_done()) << unloaded.verdict.message;
    EXPECT_EQ(unloaded.num_requests, 1);
    EXPECT_EQ(raw(unloaded.adapter.version), 3);
    const RequestKey late = rig.send(ask);
    rig.run();
    EXPECT_EQ(rig.of(open).tokens, expected(ask, 3).tokens);
    ASSERT_TRUE(rig.of(late).finish);
    EXPECT_EQ(rig.of(late).finish->verdict.code, ErrorCode::kNotFound);
    EXPECT_EQ(rig.of(late).finish->verdict.message, "no adapter 'a' is loaded; loaded are 'b'");
    EXPECT_EQ(resident(), std::set{AdapterId{4}});
    EXPECT_EQ(unload("a").verdict.code, ErrorCode::kNotFound);
    EXPECT_EQ(unload("b").num_requests, 0);
    rig.run();
    EXPECT_TRUE(resident().empty()) << "nobody had it";
}

TEST_F(AdaptersTest, ARequestThatIsCancelledOrRetractedGivesItsVersionBackOnce) {
    Rig small({.num_pages = 14});
    std::swap(rig, small);
    load("a", 3);
    std::vector<std::pair<RequestKey, Ask>> sent;
    for (int i = 0; i < 4; ++i) {
        Ask ask = ask_of("a", 100 + i);
        ask.max_new_tokens = 30;
        sent.emplace_back(rig.send(ask), ask);
    }
    rig.turn();
    while (rig.status().retractions_total == 0) ASSERT_TRUE(rig.step());
    load("a", 4);
    messages::EndRequests ended{.cause = messages::EndCause::kAbort};
    for (const auto& [key, ask] : sent) ended.keys.push_back(key);
    rig.control(std::move(ended));
    rig.run();
    EXPECT_TRUE(stage("a", 5).ok);
    EXPECT_EQ(resident(), std::set{AdapterId{4}});
    EXPECT_EQ(rig.status().adapters[0].num_older, 0);
}

TEST_F(AdaptersTest, ARetractedRequestGoesOnWithItsVersion) {
    Rig small({.num_pages = 14});
    std::swap(rig, small);
    load("a", 3);
    std::vector<std::pair<RequestKey, Ask>> sent;
    for (int i = 0; i < 3; ++i) {
        Ask ask = ask_of("a", 100 + i);
        ask.max_new_tokens = 30;
        sent.emplace_back(rig.send(ask), ask);
    }
    rig.turn();
    while (rig.status().retractions_total == 0) ASSERT_TRUE(rig.step());
    load("a", 4);
    rig.run();
    for (const auto& [key, ask] : sent) {
        EXPECT_EQ(rig.of(key).tokens, expected(ask, 3).tokens);
        EXPECT_EQ(raw(rig.of(key).adapter->version), 3);
    }
}

TEST_F(AdaptersTest, AStageThatFailsChangesNothing) {
    load("a", 3);
    rig.workers.stage_failures[1] = "k_proj.lora_A is missing";
    EXPECT_FALSE(stage("a", 4).ok);
    order(messages::UpdateDrop{.update = messages::UpdateId{4}});
    EXPECT_TRUE(answer().ok);
    const Ask ask = ask_of("a");
    const RequestKey key = rig.send(ask);
    rig.run();
    EXPECT_EQ(rig.of(key).tokens, expected(ask, 3).tokens);
    EXPECT_EQ(resident(), std::set{AdapterId{3}});
    EXPECT_EQ(rig.status().epoch, Epoch{1}) << "the model's version is its own";
}

TEST_F(AdaptersTest, AsManyAreLoadedAsMayBe) {
    Rig narrow({}, {.adapters_max = 2});
    std::swap(rig, narrow);
    load("a", 3);
    load("b", 4);
    const messages::UpdatePart third = stage("c", 5);
    EXPECT_EQ(third.verdict.code, ErrorCode::kResourceExhausted);
    EXPECT_EQ(
        third.verdict.message,
        "2 adapters are loaded, the most allowed (--max-adapters): unload one; loaded are 'a', 'b'"
    );
    load("b", 6);  // a name that is loaded may be replaced
    EXPECT_TRUE(unload("a").verdict.is_done());
    load("c", 7);
    EXPECT_EQ(resident(), (std::set{AdapterId{4}, AdapterId{6}, AdapterId{7}})) << "4 is retained";
}

TEST_F(AdaptersTest, StatusCountsByName) {
    load("a", 3);
    for (const std::int64_t num : {2, 5}) {
        Ask ask = ask_of("a");
        ask.max_new_tokens = num;
        rig.send(ask);
        rig.run();
    }
    load("b", 4);
    rig.send(ask_of("b"));
    rig.turn();
    for (int i = 0; i < 4; ++i) rig.step();
    load("b", 5);
    auto status = rig.status().adapters;
    ASSERT_EQ(std::ssize(status), 2);
    EXPECT_EQ(status[0].requests_total, 2);
    EXPECT_EQ(status[0].output_tokens_total, 7);
    EXPECT_EQ(status[0].loads_total, 1);
    EXPECT_EQ(status[0].bytes, 1000 * rig.workers.model().tp);
    EXPECT_EQ(status[1].requests_total, 1);
    EXPECT_GT(status[1].output_tokens_total, 0) << "while it runs";
    EXPECT_LT(status[1].output_tokens_total, 24);
    EXPECT_EQ(status[1].loads_total, 2);
    EXPECT_EQ(status[1].bytes, 2 * status[0].bytes) << "the older version is in use";
    ASSERT_TRUE(stage("b", 7).ok);
    EXPECT_EQ(rig.status().adapters[1].bytes, 2 * status[0].bytes);
    order(messages::UpdateDrop{.update = messages::UpdateId{7}});
    EXPECT_TRUE(answer().ok);
    rig.run();
    status = rig.status().adapters;
    EXPECT_EQ(status[1].output_tokens_total, 24);
    EXPECT_EQ(status[1].bytes, status[0].bytes);
    EXPECT_TRUE(unload("a").verdict.is_done());
    load("a", 6);
    status = rig.status().adapters;
    EXPECT_EQ(status[0].requests_total, 0);
    EXPECT_EQ(status[0].output_tokens_total, 0);
    EXPECT_EQ(status[0].loads_total, 1);
}

// verl unloads a name and loads it again while requests are open.
TEST_F(AdaptersTest, AnUnloadEndsTheCountsOfItsOpenRequests) {
    load("a", 3);
    rig.send(ask_of("a"));
    rig.turn();
    for (int i = 0; i < 4; ++i) rig.step();
    ASSERT_GT(rig.status().adapters[0].output_tokens_total, 0);
    EXPECT_TRUE(unload("a").verdict.is_done());
    load("a", 4);
    Ask next = ask_of("a", 500);
    next.max_new_tokens = 3;
    rig.send(next);
    rig.run();
    for (const auto& [key, got] : rig.all()) EXPECT_TRUE(got.finish);
    const messages::AdapterStatus status = rig.status().adapters[0];
    EXPECT_EQ(status.requests_total, 1);
    EXPECT_EQ(status.output_tokens_total, 3) << "none of the request before the unload";
    EXPECT_EQ(status.loads_total, 1);
}

// After a restart that lost an adapter, requests for it are refused and name it.
TEST_F(AdaptersTest, P2_ALostAdapterIsNamedUntilItIsLoadedAgain) {
    const messages::LostAdapter a{
        .adapter = {.name = "a", .version = Epoch{70}, .label = "step\t7", .digest = "d1"},
        .path = "/adapters/7",
        .config_digest = "c1"};
    messages::LostAdapter b = a;
    b.adapter.name = "b";
    b.adapter.label = b.path = "";
    b.pinned = true;
    const std::string lines = line_of(a) + "\n" + line_of(b) + "\n";
    const auto read = messages::lost_adapters_of(lines);
    ASSERT_TRUE(read.has_value()) << read.error().message;
    EXPECT_EQ(*read, (std::vector{a, b}));
    for (const char* const wrong :
         {"a",
          "a\t1\td\tc\t-\tp",
          "a\tx\td\tc\t-\tp\tl",
          "a\t0\td\tc\t-\tp\tl",
          "a\t1\td\tc\tno\tp\tl",
          "\n"})
        EXPECT_FALSE(messages::lost_adapters_of(wrong).has_value()) << wrong;

    Rig again({}, {.lost_adapters = *read});
    std::swap(rig, again);
    EXPECT_EQ(rig.status().lost_adapters, *read);
    const auto refusal = [&](const std::string& name) {
        const RequestKey key = rig.send(ask_of(name));
        rig.run();
        EXPECT_TRUE(rig.of(key).tokens.empty());
        EXPECT_EQ(rig.of(key).finish->verdict.code, ErrorCode::kNotFound);
        return rig.of(key).finish->verdict.message;
    };
    EXPECT_EQ(
        refusal("a"),
        "no adapter 'a' is loaded: version 70 ('step\t7') with digest d1 is lost; load it again "
        "from "
        "/adapters/7"
    );
    EXPECT_EQ(
        refusal("b"), "no adapter 'b' is loaded: version 70 with digest d1 is lost; load it again"
    );
    load("a", 103);
    const Ask ask = ask_of("a");
    const RequestKey key = rig.send(ask);
    rig.run();
    EXPECT_EQ(rig.of(key).tokens, expected(ask, 103).tokens);
    EXPECT_EQ(rig.status().lost_adapters, std::vector{b});
    const messages::AdapterPart given_up = unload("b");
    EXPECT_EQ(given_up.verdict.code, ErrorCode::kNotFound) << "and forgets it";
    EXPECT_TRUE(given_up.was_lost);
    EXPECT_EQ(given_up.adapter, b.adapter);
    const messages::AdapterPart never = unload("b");
    EXPECT_EQ(never.verdict.code, ErrorCode::kNotFound);
    EXPECT_FALSE(never.was_lost);
    EXPECT_EQ(never.adapter, messages::AdapterVersion{.name = "b"});
    EXPECT_TRUE(rig.status().lost_adapters.empty());
    EXPECT_EQ(refusal("b"), "no adapter 'b' is loaded; loaded are 'a'");
}

TEST_F(AdaptersTest, WorkersThatComputeNoneRefuseThem) {
    Rig without({.adapter_rank_max = 0});
    std::swap(rig, without);
    const messages::UpdatePart part = stage("a", 3);
    EXPECT_FALSE(part.ok);
    EXPECT_EQ(part.verdict.code, ErrorCode::kUnsupported);
    const RequestKey key = rig.send(ask_of("a"));
    rig.run();
    EXPECT_EQ(rig.of(key).finish->verdict.message, "no adapter 'a' is loaded; none is loaded");
}

}  // namespace
}  // namespace pitstop::scheduler
