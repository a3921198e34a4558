#include "scheduler_proc/draft_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <tuple>
#include <vector>

namespace pitstop::scheduler {
namespace {

using Offers = std::vector<DraftBudget::Offer>;
using std::chrono::microseconds;

// A machine whose passes take 100 us up to 16 tokens, and 5 us more per token beyond.
microseconds took(std::int64_t num_tokens) {
    return microseconds(100 + 5 * std::max<std::int64_t>(num_tokens - 16, 0));
}

// A pass of rows of one token, planned while another pass runs.
DraftBudget::Pass plain(std::int64_t num, Duration duration) {
    return {.num_tokens = num, .num_rows = num, .took = duration};
}
DraftBudget::Pass drafted(std::int64_t num_rows, std::int64_t num_drafts, Duration duration) {
    return {
        .num_tokens = num_rows + num_drafts,
        .num_rows = num_rows,
        .num_drafts = num_drafts,
        .is_alone = true,
        .took = duration};
}

// A budget that has seen passes of all sizes.
DraftBudget measured() {
    DraftBudget budget;
    for (std::int64_t num = 1; num <= 600; ++num) budget.note_pass(plain(num, took(num)));
    // Ends the trial of drafts that cost too much; the next trial comes after many passes.
    std::ignore = budget.choose(1, 1, std::vector{DraftBudget::Offer{0.9, 0}});
    return budget;
}

Offers falling(std::size_t num, double first, double factor) {
    Offers offers;
    for (std::size_t i = 0; i < num; ++i, first *= factor) offers.push_back({first, 0});
    return offers;
}

TEST(DraftBudget, DraftsNothingBeforeAPlainPassIsMeasuredThenTriesAll) {
    DraftBudget budget;
    const Offers offers = falling(7, 0.9, 0.9);
    EXPECT_FALSE(budget.is_worth(1, offers));
    EXPECT_EQ(budget.choose(1, 1, offers), 0u);
    budget.note_pass({.num_tokens = 40, .num_rows = 1, .is_alone = true, .took = took(40)});
    EXPECT_FALSE(budget.is_worth(1, offers)) << "a prompt says nothing of a row of one token";
    DraftBudget::Pass alone = plain(1, took(1));
    alone.is_alone = true;
    budget.note_pass(alone);
    EXPECT_FALSE(budget.is_worth(1, offers)) << "it did not overlap with planning";
    budget.note_pass(plain(1, took(1)));
    EXPECT_TRUE(budget.is_worth(1, offers));
    EXPECT_EQ(budget.choose(1, 1, offers), 7u);
}

TEST(DraftBudget, KnowsSecondsBetweenTheSizesThatItSaw) {
    DraftBudget budget;
    EXPECT_EQ(budget.seconds(5), 0.0);
    budget.note_pass(plain(4, microseconds(100)));
    EXPECT_DOUBLE_EQ(budget.seconds(1), 1e-4);
    EXPECT_DOUBLE_EQ(budget.seconds(300), 1e-4) << "larger passes are tried";
    budget.note_pass(plain(12, microseconds(300)));
    EXPECT_DOUBLE_EQ(budget.seconds(8), 2e-4);
    EXPECT_DOUBLE_EQ(budget.seconds(300), 3e-4);
}

TEST(DraftBudget, MeansAreOfTheLatestPassesAndOneLongPassIsNoMeasure) {
    DraftBudget budget;
    budget.note_pass(plain(1, microseconds(9000)));
    budget.note_pass(plain(1, microseconds(100)));
    EXPECT_DOUBLE_EQ(budget.seconds(1), 1e-4);
    for (int i = 0; i < 100; ++i) budget.note_pass(plain(1, microseconds(i % 2 ? 100 : 300)));
    EXPECT_NEAR(budget.seconds(1), 2e-4, 1e-5);
}

TEST(DraftBudget, ALargerPassIsNeverExpectedToBeShorterThanASmallerOne) {
    DraftBudget budget;
    for (const std::int64_t num : {1, 2, 4, 6, 8}) budget.note_pass(plain(num, microseconds(100)));
    for (int i = 0; i < 200; ++i) budget.note_pass(plain(4, microseconds(500)));
    EXPECT_DOUBLE_EQ(budget.seconds(2), 1e-4);
    EXPECT_NEAR(budget.seconds(6), 5e-4, 1e-8) << "measured before 4";
    for (int i = 0; i < 200; ++i) budget.note_pass(plain(8, microseconds(300)));
    EXPECT_NEAR(budget.seconds(4), 3e-4, 1e-8) << "measured before 8";
    EXPECT_DOUBLE_EQ(budget.seconds(1), 1e-4);
    for (std::int64_t num = 1; num < 10; ++num)
        EXPECT_LE(budget.seconds(num), budget.seconds(num + 1)) << num;
}

TEST(DraftBudget, TakesDraftsThatCostNothingAndNoneThatCostMuch) {
    DraftBudget budget = measured();
    // 15 drafts are free; one more costs 5 %, and pays if its probability is 5 % of 1 + 15 * 0.1.
    // Sizes of 16 to 19 are measured together.
    const std::size_t num_free = budget.choose(1, 1, falling(60, 0.1, 1));
    EXPECT_GE(num_free, 15u);
    EXPECT_LE(num_free, 18u);
    EXPECT_EQ(budget.choose(1, 1, falling(60, 0.5, 1)), 60u);
    const std::size_t num = budget.choose(1, 1, falling(100, 0.9, 0.95));
    EXPECT_GE(num, 15u);
    EXPECT_LE(num, 40u);
    // 256 rows take 1300 us: a draft costs 0.38 % of that, and is 0.39 % of the outputs if right.
    EXPECT_EQ(budget.choose(256, 256, falling(100, 0.9, 0.95)), 0u);
    EXPECT_FALSE(budget.is_worth(256, falling(100, 0.9, 0.95)));
    EXPECT_TRUE(budget.is_worth(8, falling(100, 0.9, 0.95)));
    EXPECT_EQ(budget.choose(1, 1, {}), 0u);
    EXPECT_FALSE(budget.is_worth(1, {}));
}

// The pass computes 400 prompt tokens in any case. A draft costs 5 us, as in a pass of 16 tokens.
TEST(DraftBudget, TheTimeOfPromptsInThePassCountsForNothing) {
    DraftBudget budget = measured();
    EXPECT_EQ(budget.choose(404, 4, falling(3, 0.1, 1)), 0u) << "4 outputs take 100 us, not 2000";
    EXPECT_EQ(budget.choose(404, 4, falling(3, 0.9, 1)), 3u);
}

TEST(DraftBudget, TheLikeliestAreFirstAndARowsOwnStayInOrder) {
    Offers offers = {{0.5, 1}, {0.5, 1}, {0.9, 2}, {0.5, 3}, {0.9, 4}, {0.1, 4}};
    DraftBudget::sort(offers);
    std::vector<std::size_t> rows;
    for (const DraftBudget::Offer& offer : offers) rows.push_back(offer.row);
    EXPECT_EQ(rows, (std::vector<std::size_t>{2, 4, 1, 1, 3, 4}));
}

// Another program slows the machine down while drafts are tried, and later stops.
TEST(DraftBudget, MeasuresAgainWhatWasTooDear) {
    DraftBudget budget = measured();
    const Offers offers = falling(8, 0.9, 0.9);
    for (int i = 0; i < 10; ++i) {
        for (std::int64_t num = 1; num <= 16; ++num)
            budget.note_pass(drafted(1, num, microseconds(1000)));
    }
    std::vector<int> tried_at;
    for (int i = 0; i < 3000; ++i) {
        if (!budget.is_worth(1, offers)) {
            budget.note_pass(plain(1, took(1)));
            continue;
        }
        const auto num = static_cast<std::int64_t>(budget.choose(1, 1, offers));
        if (num > 0) tried_at.push_back(i);
        const bool is_slow = i < 1500;
        budget.note_pass(drafted(1, num, is_slow ? microseconds(1000) : took(1 + num)));
    }
    const auto num_slow = std::ranges::count_if(tried_at, [](int i) { return i < 1500; });
    EXPECT_GE(num_slow, 4);
    EXPECT_LE(num_slow, 15) << "dear drafts are tried rarely";
    EXPECT_GT(std::ssize(tried_at) - num_slow, 500) << "what became cheap is used again";
}

TEST(DraftBudget, MeasuresPassesWithoutDraftsNowAndThen) {
    DraftBudget budget = measured();
    const Offers offers = falling(8, 0.9, 0.9);
    int num_plain = 0;
    for (int i = 0; i < 1000; ++i) {
        const bool waits = budget.is_worth(1, offers);
        const auto num =
            waits ? static_cast<std::int64_t>(budget.choose(1, 1, offers)) : std::int64_t{0};
        num_plain += num == 0;
        budget.note_pass(waits ? drafted(1, num, took(1 + num)) : plain(1, took(1)));
    }
    EXPECT_GT(num_plain, 5);
    EXPECT_LT(num_plain, 50);
}

}  // namespace
}  // namespace pitstop::scheduler
