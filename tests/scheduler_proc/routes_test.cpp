// Routes: complete whatever happens to a request. Each row is from the pass whose output the
// request got.
#include "tests/scheduler_proc/rig.h"
#include "tests/scheduler_proc/update_fixture.h"

#include <gtest/gtest.h>

namespace pitstop::scheduler {
namespace {

constexpr messages::RouteShape kShape{.layers = 3, .per_token = 2, .num_experts = 300};

// The rows from token `start` to the last but one; model_of(i) is the model of token i's row.
template <class ModelOf>
std::vector<std::uint8_t> rows_of(
    std::span<const TokenId> tokens, std::int64_t start, ModelOf model_of
) {
    std::vector<std::uint8_t> rows;
    for (std::int64_t i = start; i + 1 < std::ssize(tokens); ++i) {
        const std::vector<std::uint8_t> row =
            fake_routes(model_of(i), tokens.first(static_cast<std::size_t>(i + 1)));
        rows.insert(rows.end(), row.begin(), row.end());
    }
    return rows;
}

std::vector<TokenId> sequence_of(const Ask& ask, const Received& received) {
    std::vector<TokenId> tokens = ask.prompt;
    tokens.insert(tokens.end(), received.tokens.begin(), received.tokens.end());
    return tokens;
}

// Checks that all rows exist and are the current model's.
void expect_complete(Rig& rig, const Ask& ask, RequestKey key) {
    const Received& received = rig.of(key);
    ASSERT_TRUE(received.routes) << "request " << raw(key);
    EXPECT_EQ(received.routes->start, *ask.routes_start);
    EXPECT_EQ(received.routes->shape, kShape);
    const std::vector<TokenId> tokens = sequence_of(ask, received);
    const auto model_of = [&](std::int64_t) { return rig.workers.model(); };
    EXPECT_EQ(received.routes->experts.values, rows_of(tokens, *ask.routes_start, model_of));
    std::int64_t num_in_spans = 0;
    for (const messages::RouteSpan& span : received.routes->spans) num_in_spans += span.rows;
    EXPECT_EQ(num_in_spans, received.routes->num_rows());
}

Ask asked(std::int64_t prompt_len, std::int64_t first, std::int64_t start = 0) {
    return {.prompt = prompt_of(prompt_len, first), .max_new_tokens = 9, .routes_start = start};
}

TEST(Routes, AreOfEveryTokenButTheLast) {
    for (const std::int64_t tokens_max : {1, 3, 5, 64}) {  // a prompt in chunks
        SCOPED_TRACE(tokens_max);
        Rig rig({.routes = kShape}, {.tokens_per_step_max = tokens_max});
        for (const std::int64_t start : {0, 1, 9, 10}) {
            const Ask ask = asked(10, 100, start);
            const RequestKey key = rig.send(ask);
            rig.run();
            expect_complete(rig, ask, key);
        }
    }
}

TEST(Routes, OfARequestWithoutOutputAreThePromptsButItsLast) {
    Rig rig({.routes = kShape}, {.tokens_per_step_max = 4});
    Ask ask = asked(10, 100);
    ask.max_new_tokens = 0;
    const RequestKey key = rig.send(ask);
    rig.run();
    expect_complete(rig, ask, key);
}

TEST(Routes, CostNothingWhereTheyAreNotWanted) {
    Rig rig({.routes = kShape});
    const RequestKey key = rig.send({.prompt = prompt_of(10)});
    rig.run();
    EXPECT_FALSE(rig.of(key).routes);
    for (const messages::StepPlan& plan : rig.workers.plans()) {
        for (const messages::PlanRow& row : plan.rows) EXPECT_EQ(row.num_routed, 0);
    }
}

// The cache keeps no routes: a prefix is taken from it only up to the first row that is wanted.
TEST(Routes, P6_AreCompleteWhereThePrefixIsCached) {
    Rig rig({.routes = kShape});
    const RequestKey first = rig.send({.prompt = prompt_of(20)});
    rig.run();
    EXPECT_TRUE(rig.of(first).finish);
    for (const auto& [start, num_cached] : {std::pair{0, 0}, {3, 0}, {9, 8}, {20, 16}}) {
        SCOPED_TRACE(start);
        Ask ask{.prompt = prompt_of(20), .max_new_tokens = 5, .routes_start = start};
        const RequestKey key = rig.send(ask);
        rig.run();
        expect_complete(rig, ask, key);
        EXPECT_EQ(rig.of(key).counts->cached_tokens, num_cached);
    }
}

TEST(Routes, P4_AreCompleteAfterRetracts) {
    for (const std::int64_t num_pages : {11, 13, 16, 20}) {
        SCOPED_TRACE(testing::Message() << num_pages << " pages");
        Rig rig({.num_pages = num_pages, .routes = kShape}, {.tokens_per_step_max = 6});
        std::vector<std::pair<RequestKey, Ask>> sent;
        for (int i = 0; i < 6; ++i) {
            Ask ask = asked(5 + i, 100 + i, i % 3);
            ask.max_new_tokens = 30;
            sent.emplace_back(rig.send(ask), ask);
        }
        rig.run();
        EXPECT_GT(rig.status().retractions_total, 0);
        for (const auto& [key, ask] : sent) expect_complete(rig, ask, key);
    }
}

class RoutesInUpdates : public UpdateTest, public testing::WithParamInterface<messages::KvPolicy> {
  protected:
    RoutesInUpdates() { rig = Rig({.tp = 2, .num_pages = 128, .routes = kShape}); }
};
INSTANTIATE_TEST_SUITE_P(
    Policies,
    RoutesInUpdates,
    testing::Values(messages::KvPolicy::kKeep, messages::KvPolicy::kRecompute),
    [](const auto& suite) { return std::string(name_of(suite.param)); }
);

// Rows that were sent stay; rows after an update belong to its weights.
TEST_P(RoutesInUpdates, P3_NameTheVersionThatChoseThem) {
    const FakeModel old = rig.workers.model();
    Ask ask = asked(10, 100);
    ask.max_new_tokens = 40;
    const RequestKey key = rig.send(ask);
    rig.turn();
    while (rig.of(key).tokens.size() < 6) ASSERT_TRUE(rig.step());
    rig.workers.staged_weights = kNewWeights;
    EXPECT_TRUE(update(messages::UpdateMode::kStaged, GetParam(), Epoch{2}).ok);
    rig.run();
    const Received& received = rig.of(key);
    std::map<Epoch, std::int64_t> num_tokens = tokens_by_epoch(received);
    ASSERT_EQ(num_tokens.size(), 2u);
    ASSERT_TRUE(received.routes);
    // The row of the prompt's last token comes with the first output.
    const std::int64_t first_new = std::ssize(ask.prompt) - 1 + num_tokens[Epoch{1}];
    const std::vector<messages::RouteSpan> expected{
        {Epoch{1}, first_new}, {Epoch{2}, num_tokens[Epoch{2}]}};
    EXPECT_EQ(received.routes->spans, expected);
    const auto model_of = [&](std::int64_t i) { return i < first_new ? old : rig.workers.model(); };
    EXPECT_EQ(received.routes->experts.values, rows_of(sequence_of(ask, received), 0, model_of));
}

// A prefill that an update restarts has no rows of the earlier weights.
TEST_P(RoutesInUpdates, P3_OfAPrefillThatBeginsAnewAreOfTheNewVersion) {
    rig = Rig({.tp = 2, .num_pages = 128, .routes = kShape}, {.tokens_per_step_max = 4});
    const Ask ask = asked(40, 100);
    const RequestKey key = rig.send(ask);
    rig.turn();
    rig.workers.staged_weights = kNewWeights;
    EXPECT_TRUE(update(messages::UpdateMode::kStaged, GetParam(), Epoch{2}).ok);
    EXPECT_TRUE(rig.of(key).tokens.empty()) << "the test's update comes in its prefill";
    rig.run();
    const Received& received = rig.of(key);
    ASSERT_TRUE(received.routes);
    const bool begins_anew = GetParam() == messages::KvPolicy::kRecompute;
    EXPECT_EQ(received.routes->spans.size(), begins_anew ? 1u : 2u);
    EXPECT_EQ(received.routes->spans.back().epoch, Epoch{2});
    if (begins_anew) expect_complete(rig, ask, key);
}

TEST(Routes, P4_OfAnAbortedRequestAreThoseOfItsTokens) {
    Rig rig({.routes = kShape}, {.tokens_per_step_max = 4});
    const Ask ask = asked(10, 100);
    const RequestKey early = rig.send(ask);
    rig.turn();
    rig.step();
    rig.control(messages::EndRequests{.keys = {early}});
    rig.run();
    EXPECT_TRUE(rig.of(early).finish);
    EXPECT_FALSE(rig.of(early).routes) << "its prefill was not done";
    const RequestKey late = rig.send(ask);
    rig.turn();
    while (rig.of(late).tokens.size() < 4) ASSERT_TRUE(rig.step());
    rig.control(messages::EndRequests{.keys = {late}});
    rig.run();
    EXPECT_EQ(rig.of(late).finish->reason, messages::FinishReason::kAbort);
    expect_complete(rig, ask, late);
}

TEST(Routes, ThatCannotBeReportedAreRefused) {
    Rig without;
    const RequestKey none = without.send(asked(4, 100));
    without.run();
    EXPECT_NE(without.of(none).finish->verdict.message.find("no routes"), std::string::npos);
    Rig rig({.routes = kShape});
    const RequestKey beyond = rig.send(asked(4, 100, 5));
    rig.run();
    EXPECT_EQ(
        rig.of(beyond).finish->verdict.message,
        "routed_experts_start is 5; accepted is 0 to the length of the prompt, 4"
    );
}

TEST(Routes, AWorkersResultIsCheckedAgainstThePlan) {
    InFlightStep step;
    step.routes = kShape;
    step.rows.push_back({.end = 2, .num_routed = 2});
    const std::vector<std::uint8_t> good(24, 1);  // expert 257
    EXPECT_EQ(step.mismatch_of_routes(good), std::nullopt);
    EXPECT_EQ(step.mismatch_of_routes({}), "routes has 0 bytes, not 24");
    const std::vector<std::uint8_t> bad(24, 2);
    EXPECT_EQ(step.mismatch_of_routes(bad), "routes has expert 514; there are 300");
    const std::vector<std::int64_t> load(900, 1);
    EXPECT_EQ(step.mismatch_of_load({}), std::nullopt);
    EXPECT_EQ(step.mismatch_of_load(load), std::nullopt);
    EXPECT_EQ(
        step.mismatch_of_load(std::span(load).first(899)), "expert_load has 899 counts, not 900"
    );
}

}  // namespace
}  // namespace pitstop::scheduler
