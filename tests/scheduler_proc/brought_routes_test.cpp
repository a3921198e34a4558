// Routes that a request brings: in every plan that computes its tokens, and kept out of the prefix
// cache.
#include "tests/scheduler_proc/rig.h"
#include "tests/scheduler_proc/update_fixture.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace pitstop::scheduler {
namespace {

constexpr messages::RouteShape kShape{.layers = 3, .per_token = 2, .num_experts = 300};
constexpr std::int64_t kRowBytes = 12;

// Row i has the bytes i, i + 1, ...
std::vector<std::uint8_t> row_of(std::int64_t i) {
    std::vector<std::uint8_t> row;
    for (std::int64_t b = 0; b < kRowBytes; ++b) row.push_back(static_cast<std::uint8_t>(i + b));
    return row;
}

std::vector<std::uint8_t> rows_of(std::int64_t num) {
    std::vector<std::uint8_t> rows;
    for (std::int64_t i = 0; i < num; ++i) {
        const std::vector<std::uint8_t> row = row_of(i);
        rows.insert(rows.end(), row.begin(), row.end());
    }
    return rows;
}

Ask asking(std::int64_t prompt_len, std::int64_t first, std::int64_t num_brought) {
    return {
        .prompt = prompt_of(prompt_len, first),
        .max_new_tokens = 9,
        .brought = rows_of(num_brought)};
}

// Checks that plans have a row of routes for each computed token below num_brought, and for no
// other token. For a request that is alone in its slot.
void expect_followed(const Rig& rig, std::int64_t num_brought) {
    std::map<std::int64_t, std::int64_t> num_computed;
    for (const messages::StepPlan& plan : rig.workers.plans()) {
        auto at = plan.routes.values.begin();
        for (const messages::PlanRow& row : plan.rows) {
            for (std::int64_t i = row.begin; i < row.begin + row.num_new; ++i) {
                const bool has_row = i < row.begin + row.num_brought;
                EXPECT_EQ(has_row, i < num_brought) << "token " << i;
                ++num_computed[i];
                if (!has_row) continue;
                EXPECT_EQ(std::vector<std::uint8_t>(at, at + kRowBytes), row_of(i));
                at += kRowBytes;
            }
        }
        EXPECT_EQ(at, plan.routes.values.end());
    }
    for (std::int64_t i = 0; i < num_brought; ++i) EXPECT_GE(num_computed[i], 1) << "token " << i;
}

TEST(BroughtRoutes, AreInThePlansOfTheirTokens) {
    for (const std::int64_t tokens_max : {1, 3, 5, 64}) {
        for (const std::int64_t num_brought : {9, 10}) {
            SCOPED_TRACE(testing::Message() << tokens_max << " a step, " << num_brought << " rows");
            Rig rig({.routes = kShape}, {.tokens_per_step_max = tokens_max});
            const Ask ask = asking(10, 100, num_brought);
            const RequestKey key = rig.send(ask);
            rig.run();
            EXPECT_EQ(rig.of(key).tokens, rig.expected(ask).tokens);
            expect_followed(rig, num_brought);
        }
    }
}

TEST(BroughtRoutes, P4_AreInThePlansAgainAfterARetract) {
    Rig rig({.routes = kShape}, {.tokens_per_step_max = 6});
    const Ask ask = asking(10, 100, 10);
    const RequestKey key = rig.send(ask);
    rig.turn();
    while (rig.of(key).tokens.size() < 4) ASSERT_TRUE(rig.step());
    rig.control(messages::PauseGeneration{.call = CallId{1}, .mode = messages::PauseMode::kRetract}
    );
    rig.run();
    rig.control(messages::ContinueGeneration{.call = CallId{2}});
    rig.run();
    EXPECT_EQ(rig.of(key).counts->retractions, 1);
    EXPECT_EQ(rig.of(key).tokens, rig.expected(ask).tokens);
    expect_followed(rig, 10);
}

// KV of a request with brought routes depends on these routes: it must not enter the cache, and
// cached KV must not serve the request.
TEST(BroughtRoutes, P9_NeitherTakeAPrefixFromTheCacheNorLeaveOne) {
    Rig rig({.routes = kShape});
    const RequestKey first = rig.send(asking(20, 100, 20));
    rig.run();
    EXPECT_TRUE(rig.of(first).finish);
    const RequestKey second = rig.send({.prompt = prompt_of(20)});
    rig.run();
    EXPECT_EQ(rig.of(second).counts->cached_tokens, 0) << "the first left its KV";
    const RequestKey third = rig.send({.prompt = prompt_of(20)});
    rig.run();
    EXPECT_EQ(rig.of(third).counts->cached_tokens, 16);
    const RequestKey fourth = rig.send(asking(20, 100, 19));
    rig.run();
    EXPECT_EQ(rig.of(fourth).counts->cached_tokens, 0) << "it took the KV of others";
    // The same holds in one step with another request of the same prompt.
    Rig both({.routes = kShape});
    const RequestKey own = both.send(asking(20, 100, 20));
    const RequestKey other = both.send({.prompt = prompt_of(20)});
    both.run();
    EXPECT_EQ(both.of(own).counts->cached_tokens, 0);
    EXPECT_EQ(both.of(other).counts->cached_tokens, 0);
}

TEST(BroughtRoutes, ThatAreNoRowsAreRefused) {
    Rig without;
    const RequestKey none = without.send(asking(4, 100, 4));
    without.run();
    EXPECT_EQ(
        without.of(none).finish->verdict.message, "routed_experts: the workers report no routes"
    );
    Rig rig({.routes = kShape});
    for (const std::int64_t num_bytes : {kRowBytes - 1, 5 * kRowBytes}) {
        Ask ask = asking(4, 100, 0);
        ask.brought.resize(static_cast<std::size_t>(num_bytes));
        const RequestKey key = rig.send(ask);
        rig.run();
        EXPECT_EQ(
            rig.of(key).finish->verdict.message,
            fmt::format(
                "routed_experts has {} bytes; accepted are rows of 12, at most 4", num_bytes
            )
        );
    }
}

}  // namespace
}  // namespace pitstop::scheduler
