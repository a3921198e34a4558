// The supports of draws (messages/supports.h): one per output token, in step with the tokens.
#include "tests/scheduler_proc/rig.h"

#include <gtest/gtest.h>

namespace pitstop::scheduler {
namespace {

Ask asks_for_supports(std::int64_t first) {
    Ask ask{.prompt = prompt_of(12, first), .max_new_tokens = 20};
    ask.sampling.ignore_eos = true;
    ask.logprobs.support = true;
    return ask;
}

// The fake workers' support of token t has t + 1 ids, each of them t.
void expect_supports(const Received& got) {
    ASSERT_TRUE(got.supports);
    ASSERT_EQ(got.supports->sizes.size(), got.tokens.size());
    EXPECT_EQ(got.supports->logprobs.size(), got.tokens.size());
    std::size_t at = 0;
    for (std::size_t i = 0; i < got.tokens.size(); ++i) {
        EXPECT_EQ(got.supports->sizes[i], raw(got.tokens[i]) + 1);
        for (std::int32_t k = 0; k < got.supports->sizes[i]; ++k)
            EXPECT_EQ(got.supports->ids.at(at++), got.tokens[i]);
    }
    EXPECT_EQ(at, got.supports->ids.size());
}

TEST(Supports, EachTokenHasItsOwnAlsoWhereDraftsWereWrong) {
    SchedulerConfig config;
    config.drafts_max = 4;
    Rig rig({}, config);
    Ask ask = asks_for_supports(100);
    std::vector<TokenId> drafts = rig.expected(ask).tokens;
    for (std::size_t i = 2; i < drafts.size(); i += 3) drafts[i] = TokenId{1};
    ask.draft_ids = drafts;
    const RequestKey key = rig.send(ask);
    const RequestKey plain = rig.send({.prompt = prompt_of(12, 300), .max_new_tokens = 20});
    rig.run();
    EXPECT_EQ(rig.of(key).tokens, rig.expected(ask).tokens);
    expect_supports(rig.of(key));
    EXPECT_FALSE(rig.of(plain).supports);
}

TEST(Supports, ASupportTooLargeToReportEndsItsRequestAlone) {
    Rig rig({.vocab_size = 4 * messages::kSupportMax});
    const Ask ask = asks_for_supports(100);
    const std::vector<TokenId> tokens = rig.expected(ask).tokens;
    const auto is_large = [](TokenId id) { return raw(id) >= messages::kSupportMax; };
    const auto first = std::ranges::find_if(tokens, is_large);
    ASSERT_NE(first, tokens.end());
    const RequestKey key = rig.send(ask);
    const RequestKey other = rig.send({.prompt = prompt_of(12, 300), .max_new_tokens = 20});
    rig.run();
    ASSERT_TRUE(rig.of(key).finish);
    EXPECT_EQ(rig.of(key).finish->reason, messages::FinishReason::kError);
    EXPECT_EQ(rig.of(key).finish->verdict.code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(rig.of(key).tokens, std::vector(tokens.begin(), first));
    EXPECT_EQ(rig.of(other).tokens.size(), 20u);
}

TEST(Supports, AreRefusedWhereTheWorkersReportNone) {
    const ModelLimits limits{
        .context_len = 100, .vocab_size = 100, .pool_tokens = 100, .no_supports = "GPUs have none"};
    messages::TokenizedRequest request;
    request.prompt.values = {TokenId{1}};
    EXPECT_FALSE(problem_of(request, limits));
    request.logprobs.support = true;
    const std::optional<Error> problem = problem_of(request, limits);
    ASSERT_TRUE(problem);
    EXPECT_NE(problem->message.find("GPUs have none"), std::string::npos) << problem->message;
}

}  // namespace
}  // namespace pitstop::scheduler
