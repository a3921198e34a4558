#include "scheduler_proc/draft_index.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace pitstop::scheduler {
namespace {

using Place = DraftIndex::Place;

std::vector<TokenId> ids(const std::vector<int>& numbers) {
    std::vector<TokenId> tokens;
    for (const int number : numbers) tokens.push_back(static_cast<TokenId>(number));
    return tokens;
}

std::vector<int> guessed(const DraftIndex& index, Place last, int num_max) {
    std::vector<int> tokens;
    for (const DraftIndex::Guess& guess : index.guess(last, num_max))
        tokens.push_back(raw(guess.token));
    return tokens;
}

TEST(DraftIndex, GuessesHowATextWentOnAfterTheSameTokens) {
    DraftIndex index;
    const Place last = index.append(DraftIndex::kStart, ids({1, 2, 3, 4, 5, 6, 9, 2, 3, 4}));
    EXPECT_EQ(guessed(index, last, 3), (std::vector<int>{5, 6, 9}));
    EXPECT_EQ(guessed(index, last, 1), (std::vector<int>{5}));
    EXPECT_EQ(index.guess(last, 1).front().match, 3);
    EXPECT_FLOAT_EQ(index.guess(last, 1).front().share, 1.f);
}

TEST(DraftIndex, GuessesNothingAfterFewerEqualTokensThanAGram) {
    DraftIndex index;
    EXPECT_TRUE(index.guess(DraftIndex::kStart, 4).empty());
    const Place last = index.append(DraftIndex::kStart, ids({1, 3, 4, 5, 2, 3, 4}));
    EXPECT_TRUE(index.guess(last, 4).empty()) << "only 3, 4 are equal";
    EXPECT_TRUE(index.guess(index.append(last, TokenId{5}), 4).size() > 0);
}

TEST(DraftIndex, PrefersTheLongestMatchAndThenWhatMostOccurrencesSay) {
    DraftIndex index;
    index.append(DraftIndex::kStart, ids({7, 1, 2, 3, 40}));
    index.append(DraftIndex::kStart, ids({8, 1, 2, 3, 50}));
    index.append(DraftIndex::kStart, ids({8, 1, 2, 3, 51, 52}));
    index.append(DraftIndex::kStart, ids({8, 1, 2, 3, 51, 53}));
    const Place longest = index.append(DraftIndex::kStart, ids({7, 1, 2, 3}));
    EXPECT_EQ(guessed(index, longest, 2), (std::vector<int>{51, 53}))
        << "two votes, each of a half";
    EXPECT_EQ(index.guess(longest, 1).front().match, 3);
    index.append(DraftIndex::kStart, ids({6, 7, 1, 2, 3, 40}));
    const Place longer = index.append(DraftIndex::kStart, ids({6, 7, 1, 2, 3}));
    EXPECT_EQ(guessed(index, longer, 2), (std::vector<int>{40})) << "five tokens are equal";
    EXPECT_EQ(index.guess(longer, 1).front().match, 5);
    EXPECT_LT(index.guess(longer, 1).front().share, 1.f);
}

TEST(DraftIndex, TextsThatFollowOneTextShareIt) {
    DraftIndex index;
    const Place prompt = index.append(DraftIndex::kStart, ids({1, 2}));
    const Place first = index.append(prompt, ids({3, 4, 5}));
    const Place second = index.append(prompt, ids({3, 4}));
    EXPECT_EQ(guessed(index, second, 4), (std::vector<int>{5}));
    EXPECT_EQ(index.guess(second, 1).front().match, DraftIndex::kMatchMax) << "from the start on";
    EXPECT_TRUE(guessed(index, first, 4).empty());
    EXPECT_EQ(index.num_tokens(), 7);
}

// A text grows interleaved with others, and every chain survives the growth.
TEST(DraftIndex, FindsEveryTokenOfATextThatGrewBesideOthers) {
    std::mt19937 random(3);
    std::vector<TokenId> text;
    for (int i = 0; i < 3000; ++i) text.push_back(static_cast<TokenId>(random() % 1000));
    DraftIndex index;
    Place a = DraftIndex::kStart;
    Place b = DraftIndex::kStart;
    for (const TokenId token : text) {
        a = index.append(a, token);
        b = index.append(b, static_cast<TokenId>(1000 + random() % 1000));
    }
    int num_right = 0;
    Place again = DraftIndex::kStart;
    for (std::size_t i = 0; i + 1 < text.size(); ++i) {
        again = index.append(again, text[i]);
        const auto guess = index.guess(again, 1);
        num_right += !guess.empty() && guess.front().token == text[i + 1] ? 1 : 0;
    }
    EXPECT_GT(num_right, 2990);
}

// 32k tokens of one letter: a search visits a bounded part of the chain.
TEST(DraftIndex, ARepetitiveTextCostsNoMoreMemoryAndIsGuessed) {
    DraftIndex index;
    const std::vector<TokenId> text(std::size_t{1} << 15, TokenId{7});
    Place last = index.append(DraftIndex::kStart, text);
    EXPECT_EQ(index.guess(last, 8).size(), 8);
    EXPECT_LE(index.bytes(), 40 * index.num_tokens());
    for (int i = 0; i < 20000; ++i) last = index.append(last, static_cast<TokenId>(i % 50));
    EXPECT_LE(index.bytes(), 40 * index.num_tokens());
}

}  // namespace
}  // namespace pitstop::scheduler
