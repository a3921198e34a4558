// Tests which routes of a request are accepted.
#include "messages/codec.h"
#include "messages/generation.h"
#include "messages/routes.h"
#include "messages/steps.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::messages {
namespace {

constexpr RouteShape kSmall{.layers = 3, .per_token = 2, .num_experts = 8};
const std::vector<std::int64_t> kDense{1};
// Two tokens, whose second layer has no experts.
const std::vector<std::uint8_t> kRows{7, 0, 0, 0, 1, 2, 3, 4, 0, 0, 6, 5};

std::optional<std::string> problem_with(std::size_t at, std::uint8_t id) {
    std::vector<std::uint8_t> rows = kRows;
    rows[at] = id;
    return problem_of_rows(kSmall, kDense, rows);
}

TEST(BroughtRoutes, TheFirstEntryThatNoRouterChoosesIsNamed) {
    EXPECT_EQ(problem_of_rows(kSmall, kDense, kRows), std::nullopt);
    EXPECT_EQ(
        problem_with(11, 8), "token 1, layer 2, entry 1 is expert 8; the model has experts [0, 8)"
    );
    EXPECT_EQ(
        problem_with(1, 7),
        "token 0, layer 0, entry 1 is expert 7, as an entry before it; a token has each expert once"
    );
    EXPECT_EQ(
        problem_with(8, 1),
        "token 1, layer 1, entry 0 is expert 1; this layer has no experts: its entries are 0"
    );
    // Zeros are not valid choices in a layer with experts.
    std::vector<std::uint8_t> rows = kRows;
    rows[6] = rows[7] = 0;
    EXPECT_EQ(
        problem_of_rows(kSmall, kDense, rows),
        "token 1, layer 0, entry 1 is expert 0, as an entry before it; a token has each expert once"
    );
}

TEST(BroughtRoutes, IdsOfTwoBytesAreLittleEndian) {
    const RouteShape shape{.layers = 1, .per_token = 2, .num_experts = 300};
    EXPECT_EQ(problem_of_rows(shape, {}, std::vector<std::uint8_t>{43, 1, 43, 0}), std::nullopt);
    EXPECT_EQ(
        problem_of_rows(shape, {}, std::vector<std::uint8_t>{44, 1, 43, 0}),
        "token 0, layer 0, entry 0 is expert 300; the model has experts [0, 300)"
    );
}

TEST(BroughtRoutes, BytesAreWholeRowsUpToABound) {
    Generate message;
    message.rid = "r";
    message.input_ids = {TokenId{1}};
    const auto problem = [&](std::size_t num_bytes) {
        message.routed_experts = BroughtRoutes{.shape = kSmall};
        message.routed_experts->experts.values.resize(num_bytes);
        return invalid(message);
    };
    EXPECT_EQ(problem(12), std::nullopt);
    EXPECT_EQ(
        problem(13),
        "routed_experts: routes of 13 bytes; accepted are whole rows of 6 bytes, at least one"
    );
    EXPECT_EQ(
        problem(0),
        "routed_experts: routes of 0 bytes; accepted are whole rows of 6 bytes, at least one"
    );
    const auto max = static_cast<std::size_t>(BroughtRoutes::kBytesMax);
    EXPECT_EQ(problem(max), std::nullopt);
    EXPECT_EQ(
        problem(max + 6), "routed_experts: routes of 12582918 bytes; at most 12582912 are accepted"
    );
    message.routed_experts->shape.per_token = 0;
    EXPECT_EQ(
        invalid(message),
        "routed_experts: routes of 3 layers, 0 experts a token, 8 experts; accepted are 1 to "
        "16384, 1024 and 65536"
    );
}

TEST(BroughtRoutes, APlansBytesAreThoseOfItsRows) {
    StepPlan plan;
    plan.rows = {{.num_new = 2, .num_pages = 1, .num_brought = 2}};
    plan.tokens.values = {TokenId{1}, TokenId{2}};
    plan.pages.values = {PageId{0}};
    EXPECT_EQ(invalid(plan), "rows have routes of 2 positions, the plan 0 bytes of them");
    plan.routes.values.resize(13);
    EXPECT_EQ(invalid(plan), "rows have routes of 2 positions, the plan 13 bytes of them");
    plan.routes.values.resize(12);
    EXPECT_EQ(invalid(plan), std::nullopt);
    plan.rows[0].num_brought = 3;
    EXPECT_EQ(invalid(plan), "row 0: brings routes of 3 of its 2 positions");
    plan.rows[0].num_brought = 0;
    EXPECT_EQ(invalid(plan), "rows have routes of 0 positions, the plan 12 bytes of them");
}

TEST(BroughtRoutes, DenseLayersAscendAndExist) {
    EXPECT_EQ(invalid_dense_layers(kSmall, std::vector<std::int64_t>{0, 2}), std::nullopt);
    for (const std::vector<std::int64_t>& bad :
         {std::vector<std::int64_t>{0, 3}, {0, 0}, {2, 1}, {-1}}) {
        EXPECT_EQ(
            invalid_dense_layers(kSmall, bad),
            "dense_layers has " + std::to_string(bad.back()) +
                "; accepted are ascending layers of [0, 3)"
        );
    }
}

}  // namespace
}  // namespace pitstop::messages
