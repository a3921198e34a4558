#include "scheduler_proc/request.h"

#include <gtest/gtest.h>

#include <limits>

namespace pitstop::scheduler {
namespace {

const ModelLimits kLimits{
    .context_len = 32, .vocab_size = 100, .pool_tokens = 24, .eos_ids = {TokenId{1}, TokenId{2}}};

messages::TokenizedRequest request_of(
    std::int64_t prompt_len, std::optional<std::int64_t> max_new_tokens
) {
    messages::TokenizedRequest request;
    request.key = RequestKey{1};
    request.prompt.values.assign(static_cast<std::size_t>(prompt_len), TokenId{5});
    request.sampling.max_new_tokens = max_new_tokens;
    return request;
}

std::string code_of(const messages::TokenizedRequest& request) {
    const auto error = problem_of(request, kLimits);
    return error ? std::string(name_of(error->code)) : "";
}

TEST(Request, FitsTheContextAndThePoolOrIsRefusedWithTheNumbers) {
    EXPECT_EQ(code_of(request_of(0, 1)), "invalid_argument");
    EXPECT_EQ(code_of(request_of(1, 1)), "");
    EXPECT_EQ(code_of(request_of(20, 4)), "");
    EXPECT_EQ(code_of(request_of(20, 5)), "resource_exhausted");
    EXPECT_EQ(code_of(request_of(24, std::nullopt)), "resource_exhausted");
    EXPECT_EQ(code_of(request_of(23, std::nullopt)), "");
    EXPECT_EQ(code_of(request_of(31, 1)), "resource_exhausted");
    EXPECT_EQ(code_of(request_of(32, 1)), "invalid_argument");
    EXPECT_EQ(code_of(request_of(32, std::nullopt)), "invalid_argument");
    EXPECT_EQ(code_of(request_of(33, 0)), "invalid_argument");
    EXPECT_EQ(code_of(request_of(1, std::numeric_limits<std::int64_t>::max())), "invalid_argument");
    EXPECT_NE(problem_of(request_of(20, 5), kLimits)->message.find("24"), std::string::npos);
}

TEST(Request, WithoutALimitTakesWhatFits) {
    EXPECT_EQ(Request(request_of(10, std::nullopt), kLimits).progress.output_len_max(), 14);
    EXPECT_EQ(Request(request_of(10, 3), kLimits).progress.output_len_max(), 3);
}

TEST(Request, NamesNoTokenOutsideTheVocabulary) {
    auto request = request_of(3, 1);
    request.prompt.values[1] = TokenId{100};
    EXPECT_EQ(code_of(request), "invalid_argument");
    EXPECT_NE(problem_of(request, kLimits)->message.find("prompt[1]"), std::string::npos);
    request.prompt.values[1] = TokenId{-1};
    EXPECT_EQ(code_of(request), "invalid_argument");
    request = request_of(3, 1);
    request.sampling.stop_token_ids = {TokenId{100}};
    EXPECT_EQ(code_of(request), "invalid_argument");
    request = request_of(3, 1);
    request.sampling.logit_bias = {{100, 1.0}};
    EXPECT_EQ(code_of(request), "invalid_argument");
    request = request_of(3, 1);
    request.logprobs.enabled = true;
    request.logprobs.ids = {TokenId{99}};
    EXPECT_EQ(code_of(request), "");
    request.logprobs.ids = {TokenId{100}};
    EXPECT_EQ(code_of(request), "invalid_argument");
}

TEST(Request, WithParametersOutOfRangeIsRefused) {
    auto request = request_of(3, 1);
    request.sampling.temperature = std::numeric_limits<double>::quiet_NaN();
    EXPECT_EQ(code_of(request), "invalid_argument");
    request = request_of(3, 1);
    request.kv_max_lag = -1;
    EXPECT_EQ(code_of(request), "invalid_argument");
    request = request_of(3, 1);
    request.logprobs.top = 5;
    EXPECT_EQ(code_of(request), "invalid_argument") << "top needs enabled";
}

TEST(Request, StopsAtEndOfSequenceAndStopTokens) {
    auto arrived = request_of(3, 10);
    arrived.sampling.stop_token_ids = {TokenId{7}};
    arrived.sampling.min_new_tokens = 2;
    const Request request(arrived, kLimits);
    EXPECT_EQ(request.stop_ids, (std::vector{TokenId{1}, TokenId{2}, TokenId{7}}));
    EXPECT_FALSE(request.finish_of(TokenId{7}, 1)) << "before min_new_tokens";
    ASSERT_TRUE(request.finish_of(TokenId{7}, 2));
    EXPECT_EQ(request.finish_of(TokenId{7}, 2)->reason, messages::FinishReason::kStop);
    EXPECT_EQ(request.finish_of(TokenId{7}, 2)->matched_token, TokenId{7});
    EXPECT_EQ(request.finish_of(TokenId{9}, 9)->reason, messages::FinishReason::kLength);
    EXPECT_EQ(request.finish_of(TokenId{1}, 9)->reason, messages::FinishReason::kStop)
        << "stop is told first";
}

TEST(Request, IgnoreEosDisablesOnlyEndOfSequence) {
    auto arrived = request_of(3, 10);
    arrived.sampling.stop_token_ids = {TokenId{2}};
    arrived.sampling.ignore_eos = true;
    const Request request(arrived, kLimits);
    EXPECT_FALSE(request.finish_of(TokenId{1}, 0));
    EXPECT_TRUE(request.finish_of(TokenId{2}, 0));
}

TEST(Request, AcceptsCachedPrefixesByItsTolerance) {
    auto arrived = request_of(3, 10);
    Request request(arrived, kLimits);
    EXPECT_EQ(request.accepted_epochs(Epoch{5}), (EpochRange{Epoch{5}, Epoch{5}}));
    request.kv_tolerance = messages::KvTolerance::kMaxLag;
    request.kv_max_lag = 2;
    EXPECT_EQ(request.accepted_epochs(Epoch{5}), (EpochRange{Epoch{3}, Epoch{5}}));
    request.kv_max_lag = std::numeric_limits<std::int64_t>::max();
    EXPECT_EQ(request.accepted_epochs(Epoch{5}), (EpochRange{Epoch{1}, Epoch{5}}));
    request.kv_tolerance = messages::KvTolerance::kKeep;
    EXPECT_EQ(request.accepted_epochs(Epoch{5}), (EpochRange{Epoch{1}, Epoch{5}}));
    request.kv_floor = Epoch{4};
    EXPECT_EQ(request.accepted_epochs(Epoch{5}), (EpochRange{Epoch{4}, Epoch{5}}));
}

TEST(Request, TakesFromTheCacheOnlyWhatNeedsNoLogits) {
    auto arrived = request_of(10, 4);
    EXPECT_EQ(Request(arrived, kLimits).cacheable_len(), 9);
    arrived.logprobs.enabled = true;
    arrived.logprobs.prompt_start = 4;
    EXPECT_EQ(Request(arrived, kLimits).cacheable_len(), 3) << "token 4 is scored by position 3";
    arrived.logprobs.prompt_start = 0;
    EXPECT_EQ(Request(arrived, kLimits).cacheable_len(), 0);
    arrived.logprobs.prompt_start = 1000;
    EXPECT_EQ(Request(arrived, kLimits).cacheable_len(), 9);
}

TEST(Request, NoMoreOfThePromptIsOutputThanThereIs) {
    auto arrived = request_of(3, 4);
    arrived.sampling.num_output_in_prompt = 3;
    EXPECT_FALSE(problem_of(arrived, kLimits));
    arrived.sampling.num_output_in_prompt = 4;
    const auto problem = problem_of(arrived, kLimits);
    ASSERT_TRUE(problem);
    EXPECT_NE(problem->message.find("num_output_in_prompt is 4"), std::string::npos);
}

TEST(Request, HistoryTravelsOnlyForPenalties) {
    auto arrived = request_of(3, 4);
    arrived.sampling.stop = {"x"};
    EXPECT_TRUE(Request(arrived, kLimits).setup(SlotId{0}).history.empty());
    EXPECT_TRUE(Request(arrived, kLimits).setup(SlotId{0}).sampling.stop.empty())
        << "texts stay behind";
    arrived.sampling.presence_penalty = 0.5;
    EXPECT_EQ(Request(arrived, kLimits).setup(SlotId{0}).history.size(), 3u);
}

}  // namespace
}  // namespace pitstop::scheduler
