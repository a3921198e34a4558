#include "messages/steps.h"

#include <gtest/gtest.h>

#include <string>

namespace pitstop::messages {
namespace {

// Drafts are guesses at the tokens after a known one, in a row that samples and scores nothing.
TEST(PlanDrafts, FollowATokenThatSamples) {
    const PlanRow good{
        .num_new = 3, .num_pages = 1, .output_index = 5, .num_drafted = std::int64_t{2}};
    const auto problem = [](const PlanRow& row) {
        StepPlan plan;
        plan.rows = {row};
        plan.tokens.values.resize(static_cast<std::size_t>(row.num_new));
        plan.pages.values.resize(1);
        plan.targets.values.resize(static_cast<std::size_t>(row.num_scored));
        return invalid(plan).value_or("");
    };
    EXPECT_EQ(problem(good), "");
    PlanRow row = good;
    row.output_index = (std::int64_t{1} << 31) - 1 - 2;
    EXPECT_EQ(problem(row), "");
    ++*row.output_index;
    EXPECT_NE(problem(row).find("output_index is 2147483646"), std::string::npos);
    row = good;
    row.output_index.reset();
    EXPECT_NE(problem(row).find("2 drafts of 3 tokens, no output"), std::string::npos);
    row = good;
    row.num_scored = 1;
    EXPECT_NE(problem(row).find("1 scored"), std::string::npos);
    for (const std::int64_t num : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{3}}) {
        row = good;
        row.num_drafted = num;
        EXPECT_NE(problem(row).find("drafts of 3 tokens"), std::string::npos) << num;
    }
    row = good;
    row.num_new = 40;
    row.num_drafted = 32;
    EXPECT_EQ(problem(row), "");
    row.num_drafted = 33;
    EXPECT_NE(problem(row).find("accepted are 1 to 32"), std::string::npos);
}

}  // namespace
}  // namespace pitstop::messages
