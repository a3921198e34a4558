#include "scheduler_proc/drafter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pitstop::scheduler {
namespace {

std::vector<TokenId> run_of(int first, int num) {
    std::vector<TokenId> tokens;
    for (int i = 0; i < num; ++i) tokens.push_back(static_cast<TokenId>(first + i));
    return tokens;
}

struct Given {
    std::uint64_t key = 1;
    std::vector<TokenId> prompt = run_of(0, 10);
    std::vector<TokenId> draft_ids{};
    std::optional<std::string> draft_key{};
    std::string connection = "a";
};

// A running request, with the scheduler's data of it.
class Running {
  public:
    explicit Running(const Given& given) : request_(arrived(given), kLimits) {
        request_.progress.start(0);
        request_.progress.plan(std::ssize(given.prompt), /*samples=*/true);
        request_.progress.finish_step(std::ssize(given.prompt));
    }
    // The token being sampled becomes known, and the next step is planned.
    void learn(TokenId token) {
        request_.progress.learn_token();
        request_.tokens.push_back(token);
        request_.progress.plan(1, /*samples=*/true);
    }
    void learn(const std::vector<TokenId>& tokens) {
        for (const TokenId token : tokens) learn(token);
    }
    [[nodiscard]] const Request& get() const { return request_; }

  private:
    static inline const ModelLimits kLimits{
        .context_len = 100000, .vocab_size = 1000000, .pool_tokens = 100000};
    static messages::TokenizedRequest arrived(const Given& given) {
        messages::TokenizedRequest request;
        request.key = static_cast<RequestKey>(given.key);
        request.prompt.values = given.prompt;
        request.sampling.max_new_tokens = 10000;
        if (!given.draft_ids.empty()) request.draft_ids = given.draft_ids;
        request.draft_key = given.draft_key;
        request.client = {given.connection};
        return request;
    }
    Request request_;
};

std::vector<TokenId> drafted(Drafter& drafter, const Running& running, std::int64_t num_max = 8) {
    const auto drafts = drafter.draft(running.get(), num_max);
    return {drafts.begin(), drafts.end()};
}

constexpr Drafter::Limits kLimits{.drafts_max = 4, .memory_max = 1 << 20};

TEST(Drafter, DraftsWhatThePromptSaysAfterTheSameTokens) {
    Drafter drafter(kLimits);
    Running request({.prompt = run_of(0, 30)});
    request.learn(run_of(5, 8));
    EXPECT_EQ(drafted(drafter, request), run_of(13, 4));
    EXPECT_EQ(drafted(drafter, request, 2), run_of(13, 2));
    request.learn(TokenId{500});
    EXPECT_TRUE(drafted(drafter, request).empty());
}

TEST(Drafter, DraftsWhatTheRequestBringsFromItsFirstOutputOn) {
    Drafter drafter(kLimits);
    Running request({.draft_ids = run_of(100, 20)});
    request.learn(TokenId{100});
    EXPECT_EQ(drafted(drafter, request), run_of(101, 4));
    EXPECT_TRUE(drafter.is_worth_waiting(request.get()));
    request.learn(run_of(101, 18));
    EXPECT_EQ(drafted(drafter, request), run_of(119, 1)) << "its last token";
    EXPECT_FALSE(drafter.is_worth_waiting(request.get())) << "that token is being sampled";
}

TEST(Drafter, DraftsFromSamplesOfThePromptThatRunAndThatEnded) {
    Drafter drafter(kLimits);
    Running elder({.key = 1});
    Running younger({.key = 2});
    elder.learn(run_of(100, 20));
    EXPECT_TRUE(drafted(drafter, elder).empty());
    younger.learn(run_of(100, 3));
    EXPECT_EQ(drafted(drafter, younger), run_of(103, 4));
    elder.learn(run_of(120, 5));
    drafter.remove(elder.get());
    drafter.remove(younger.get());
    EXPECT_EQ(drafter.num_groups(), 1);
    Running later({.key = 3});  // in the next epoch
    later.learn(run_of(100, 23));
    EXPECT_EQ(drafted(drafter, later), run_of(123, 2));
    drafter.remove(later.get());
}

TEST(Drafter, OutputsOfOneConnectionAreNoDraftsOfAnother) {
    for (const bool has_key : {false, true}) {
        SCOPED_TRACE(has_key ? "with a key" : "without");
        Drafter drafter(kLimits);
        const auto key = has_key ? std::optional<std::string>("group") : std::nullopt;
        Running first({.key = 1, .draft_key = key, .connection = "a"});
        Running second({.key = 2, .draft_key = key, .connection = "b"});
        first.learn(run_of(100, 20));
        EXPECT_TRUE(drafted(drafter, first).empty());
        second.learn(run_of(100, 3));
        EXPECT_EQ(drafted(drafter, second), has_key ? run_of(103, 4) : std::vector<TokenId>{});
    }
}

TEST(Drafter, AKeyJoinsRequestsWhosePromptsDiffer) {
    Drafter drafter(kLimits);
    Running first({.key = 1, .prompt = run_of(0, 10), .draft_key = "task 7"});
    Running second({.key = 2, .prompt = run_of(50, 7), .draft_key = "task 7"});
    Running other({.key = 3, .prompt = run_of(0, 10), .draft_key = "task 8"});
    first.learn(run_of(100, 20));
    EXPECT_TRUE(drafted(drafter, first).empty());
    second.learn(run_of(100, 4));
    EXPECT_EQ(drafted(drafter, second), run_of(104, 4));
    other.learn(run_of(100, 4));
    EXPECT_TRUE(drafted(drafter, other).empty());
}

TEST(Drafter, StopsDraftingForARequestWhoseDraftsAreWrongAndBeginsAgain) {
    Drafter drafter(kLimits);
    std::vector<TokenId> text;  // each run of tokens 1, 2, 3 is followed by another token
    for (int i = 0; i < 400; ++i) {
        for (const int token : {1, 2, 3, 1000 + i}) text.push_back(static_cast<TokenId>(token));
    }
    Running request({.prompt = text});
    int num_drafted = 0;
    for (int i = 0; i < 100; ++i) {
        request.learn(run_of(1, 3));
        num_drafted += drafted(drafter, request).empty() ? 0 : 1;
        request.learn(static_cast<TokenId>(5000 + i));
        drafted(drafter, request);
    }
    EXPECT_LT(num_drafted, 20) << "of 100, all wrong";
    num_drafted = 0;
    for (int i = 0; i < 100; ++i) {
        request.learn(run_of(1, 3));
        num_drafted += drafted(drafter, request).empty() ? 0 : 1;
        request.learn(TokenId{7777});
        drafted(drafter, request);
    }
    EXPECT_GT(num_drafted, 50) << "they are right now";
}

TEST(Drafter, KeepsNoMoreThanItsMemoryAndDropsTheOldestFirst) {
    constexpr std::int64_t kMemory = 100000;
    Drafter drafter({.drafts_max = 4, .memory_max = kMemory});
    for (int i = 0; i < 200; ++i) {
        Running request({.key = static_cast<std::uint64_t>(i + 1), .prompt = run_of(1000 * i, 20)});
        request.learn(run_of(1000 * i + 100, 100));
        drafted(drafter, request);
        drafter.remove(request.get());
        EXPECT_LE(drafter.kept_bytes(), kMemory);
    }
    EXPECT_GT(drafter.num_groups(), 5);
    EXPECT_LT(drafter.num_groups(), 100);
    Running newest({.key = 1001, .prompt = run_of(199000, 20)});
    newest.learn(run_of(199100, 3));
    EXPECT_EQ(drafted(drafter, newest), run_of(199103, 4));
    Running oldest({.key = 1002, .prompt = run_of(0, 20)});
    oldest.learn(run_of(100, 3));
    EXPECT_TRUE(drafted(drafter, oldest).empty());
}

// The same prompt many times: the group keeps its newest texts.
TEST(Drafter, AGroupTakesAPartOfTheMemory) {
    constexpr std::int64_t kMemory = 400000;
    Drafter drafter({.drafts_max = 4, .memory_max = kMemory});
    Running always({.key = 1});
    always.learn(TokenId{900000});
    drafted(drafter, always);
    for (int i = 0; i < 100; ++i) {
        Running request({.key = static_cast<std::uint64_t>(i + 2)});
        request.learn(run_of(1000 * i + 100, 100));
        drafted(drafter, request);
        drafter.remove(request.get());
        EXPECT_LE(drafter.kept_bytes(), kMemory / Drafter::kGroupShare);
    }
    Running again({.key = 1001});
    again.learn(run_of(99100, 3));
    EXPECT_EQ(drafted(drafter, again), run_of(99103, 4)) << "of the newest";
    always.learn(run_of(99100, 3));
    EXPECT_EQ(drafted(drafter, always), run_of(99103, 4)) << "one that ran all the time";
}

TEST(Drafter, WithoutMemoryItKeepsNothingOfEndedRequests) {
    Drafter drafter({.drafts_max = 4, .memory_max = 0});
    Running first({.key = 1});
    first.learn(run_of(100, 20));
    drafted(drafter, first);
    drafter.remove(first.get());
    EXPECT_EQ(drafter.kept_bytes(), 0);
    EXPECT_EQ(drafter.num_groups(), 0);
}

}  // namespace
}  // namespace pitstop::scheduler
