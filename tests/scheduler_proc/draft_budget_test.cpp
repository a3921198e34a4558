#include "scheduler_proc/draft_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace pitstop::scheduler {
namespace {

using std::chrono::microseconds;

// A machine whose passes take 100 us up to 16 tokens, and 5 us more per token beyond.
microseconds took(std::int64_t num_tokens) {
    return microseconds(100 + 5 * std::max<std::int64_t>(num_tokens - 16, 0));
}

// A budget that has seen passes of all sizes.
DraftBudget measured() {
    DraftBudget budget;
    for (std::int64_t num = 1; num <= 600; ++num) budget.note_pass(num, took(num));
    return budget;
}

std::vector<double> falling(std::size_t num, double first, double factor) {
    std::vector<double> likelihoods;
    for (std::size_t i = 0; i < num; ++i, first *= factor) likelihoods.push_back(first);
    return likelihoods;
}

TEST(DraftBudget, TriesAllBeforeAnythingIsMeasured) {
    DraftBudget budget;
    EXPECT_EQ(budget.choose(1, 1, falling(7, 0.9, 0.9)), 7u);
}

TEST(DraftBudget, KnowsSecondsBetweenTheSizesThatItSaw) {
    DraftBudget budget;
    EXPECT_EQ(budget.seconds(5), 0.0);
    budget.note_pass(4, microseconds(100));
    EXPECT_DOUBLE_EQ(budget.seconds(1), 1e-4);
    EXPECT_DOUBLE_EQ(budget.seconds(300), 1e-4) << "larger passes are tried";
    budget.note_pass(12, microseconds(300));
    EXPECT_DOUBLE_EQ(budget.seconds(8), 2e-4);
    EXPECT_DOUBLE_EQ(budget.seconds(300), 3e-4);
}

TEST(DraftBudget, TakesWhatCostsNothingAndNotWhatCostsMuch) {
    DraftBudget budget = measured();
    // 15 drafts are free; one more would have to be right with 5 %.
    EXPECT_EQ(budget.choose(1, 1, std::vector<double>(15, 0.3)), 15u);
    const std::size_t num = budget.choose(1, 1, falling(100, 0.9, 0.95));
    EXPECT_GE(num, 15u);
    EXPECT_LE(num, 40u);
    // 256 rows take 1300 us: a draft costs 0.38 % of that, and is 0.39 % of the outputs if right.
    EXPECT_EQ(budget.choose(256, 256, falling(100, 0.9, 0.95)), 0u);
    EXPECT_FALSE(budget.is_worth(256, 256, falling(100, 0.9, 0.95)));
    EXPECT_TRUE(budget.is_worth(8, 8, falling(100, 0.9, 0.95)));
    EXPECT_EQ(budget.choose(1, 1, {}), 0u);
    EXPECT_FALSE(budget.is_worth(1, 1, {}));
}

TEST(DraftBudget, MeasuresAgainWhatWasTooDearOnce) {
    DraftBudget budget = measured();
    for (int i = 0; i < 100; ++i)
        for (std::int64_t num = 2; num <= 600; ++num) budget.note_pass(num, microseconds(90'000));
    const std::vector<double> likelihoods = falling(8, 0.9, 0.9);
    EXPECT_FALSE(budget.is_worth(1, 1, likelihoods));
    int num_asked = 1;
    while (!budget.is_worth(1, 1, likelihoods) && num_asked < 10'000) ++num_asked;
    EXPECT_LT(num_asked, 1000);
    const std::size_t num_tried = budget.choose(1, 1, likelihoods);
    EXPECT_EQ(num_tried, 1u) << "a pass of twice the size at most";
    EXPECT_EQ(budget.choose(1, 1, likelihoods), 0u);
    for (int i = 0; i < 100; ++i) budget.note_pass(2, took(2));
    EXPECT_TRUE(budget.is_worth(1, 1, likelihoods));
}

TEST(DraftBudget, MeasuresPassesWithoutDraftsNowAndThen) {
    DraftBudget budget = measured();
    int num_plain = 0;
    for (int i = 0; i < 1000; ++i) num_plain += budget.choose(1, 1, falling(8, 0.9, 0.9)) == 0;
    EXPECT_GT(num_plain, 5);
    EXPECT_LT(num_plain, 50);
}

}  // namespace
}  // namespace pitstop::scheduler
