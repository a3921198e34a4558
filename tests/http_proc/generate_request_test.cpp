// Tests the requests that bodies become. After a change of any byte a parser at most refuses.
#include "http_proc/sglang/generate_request.h"

#include "http_proc/openai/completions_request.h"
#include "http_proc/vllm/generate_request.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace pitstop::http {
namespace {

TEST(SkyRlGenerate, TheRowsOfASupportAreBoundedAlsoWithoutMaxTokens) {
    const auto parse = [](std::string_view sampling, std::int64_t context_len) {
        return parse_skyrl_generate(
            fmt::format(
                R"({{"token_ids": [1, 2, 3], "return_sample_support": true, "sampling_params": {}}})",
                sampling
            ),
            context_len
        );
    };
    EXPECT_TRUE(parse(R"({"top_k": 4096})", 4099));
    EXPECT_TRUE(parse(R"({"top_k": 4096, "max_tokens": 4096})", 262'144));
    EXPECT_TRUE(parse(R"({"top_k": 2})", 2));  // a prompt that is too long is refused later
    for (const auto& refused :
         {parse(R"({"top_k": 4096})", 4100),
          parse(R"({"top_k": 65})", 262'144),
          parse(R"({"top_k": 4096, "max_tokens": 4097})", 4096)}) {
        ASSERT_FALSE(refused);
        EXPECT_NE(refused.error().message.find("are more than 16777216 ids"), std::string::npos)
            << refused.error().message;
    }
}

const std::string kSglang = R"({"text": ["a", "b"], "rid": "r", "return_logprob": [true, false],
    "top_logprobs_num": 2, "stream": true, "logprobs_mode": "raw", "kv_tolerance": "max_lag",
    "kv_max_lag": 2, "sampling_params": {"max_new_tokens": 7, "temperature": 1e-7, "n": 1,
    "stop": "x", "logit_bias": {"5": 1.5}, "sampling_seed": 3}})";

TEST(SglangRequest, BecomesTheEnginesRequests) {
    const auto call = parse_sglang_generate(kSglang);
    ASSERT_TRUE(call) << call.error().message;
    ASSERT_EQ(call->prompts.size(), 2U);
    EXPECT_TRUE(call->is_batch && call->is_streamed && call->answers_list());
    const messages::Generate& first = call->prompts[0];
    EXPECT_EQ(first.rid, "r_0");
    EXPECT_EQ(first.sampling.temperature, 0);
    EXPECT_EQ(first.sampling.max_new_tokens, 7);
    EXPECT_EQ(first.sampling.logit_bias.at(5), 1.5);
    EXPECT_EQ(first.sampling.seed, 3U);
    EXPECT_EQ(first.logprobs.top, 2);
    EXPECT_EQ(first.logprobs.mode, messages::LogprobsMode::kRaw);
    EXPECT_EQ(first.kv_tolerance, messages::KvTolerance::kMaxLag);
    EXPECT_FALSE(call->prompts[1].logprobs.enabled);
    EXPECT_EQ(call->prompts[1].logprobs.top, 0);  // no effect without logprobs
}

TEST(SglangRequest, AStreamIntervalIsBetweenOneAndTwoToThe30) {
    const auto parse = [](const std::string& interval) {
        return parse_sglang_generate(
            R"({"input_ids": [1], "sampling_params": {"stream_interval": )" + interval + "}}"
        );
    };
    EXPECT_EQ(parse("1")->stream_interval, 1);
    EXPECT_EQ(parse("1073741824")->stream_interval, 1 << 30);
    for (const char* wrong : {"0", "-1", "1073741825", "9223372036854775807", "1e300", "[]"}) {
        const auto refused = parse(wrong);
        ASSERT_FALSE(refused) << wrong;
        EXPECT_NE(refused.error().message.find("stream_interval"), std::string::npos) << wrong;
    }
}

TEST(SglangRequest, ANameOfAnotherDialectIsRefusedWithItsOwn) {
    const auto message_of = [](const std::string& name) {
        const auto refused = parse_sglang_generate(
            R"({"input_ids": [1], "sampling_params": {")" + name + R"(": 1}})"
        );
        return refused ? std::string() : refused.error().message;
    };
    EXPECT_EQ(
        message_of("max_tokens"),
        "sampling_params has no parameter 'max_tokens'; its name here is max_new_tokens"
    );
    EXPECT_EQ(message_of("temprature"), "sampling_params has no parameter 'temprature'");
}

TEST(SglangRequest, HasSglangsDefaults) {
    const auto call = parse_sglang_generate(R"({"input_ids": [1]})");
    ASSERT_TRUE(call);
    EXPECT_EQ(call->prompts[0].sampling.max_new_tokens, 128);
    EXPECT_EQ(call->prompts[0].logprobs.mode, messages::LogprobsMode::kRaw);  // by default
    EXPECT_FALSE(call->answers_list());
    const auto null = parse_sglang_generate(
        R"({"input_ids": [1], "return_logprob": true,
            "sampling_params": {"max_new_tokens": null, "top_k": null, "temperature": null}})"
    );
    ASSERT_TRUE(null);
    EXPECT_FALSE(null->prompts[0].sampling.max_new_tokens);
    EXPECT_EQ(null->prompts[0].sampling.top_k, std::nullopt);
    EXPECT_EQ(null->prompts[0].logprobs.mode, messages::LogprobsMode::kScaled);
}

TEST(SglangRequest, MinusOneIsNone) {
    const auto call = parse_sglang_generate(
        R"({"input_ids": [1], "return_logprob": true, "logprob_start_len": -1,
            "sampling_params": {"top_k": -1}})"
    );
    ASSERT_TRUE(call) << call.error().message;
    EXPECT_EQ(call->prompts[0].sampling.top_k, std::nullopt);
    EXPECT_EQ(call->prompts[0].logprobs.prompt_start, std::nullopt);
    const auto some = parse_sglang_generate(
        R"({"input_ids": [1], "return_logprob": true, "logprob_start_len": 0,
            "sampling_params": {"top_k": 7}})"
    );
    ASSERT_TRUE(some) << some.error().message;
    EXPECT_EQ(some->prompts[0].sampling.top_k, 7);
    EXPECT_EQ(some->prompts[0].logprobs.prompt_start, 0);
    for (const char* wrong :
         {R"({"text": "a", "return_logprob": true, "logprob_start_len": -2})",
          R"({"text": "a", "sampling_params": {"top_k": -2}})"})
        EXPECT_FALSE(parse_sglang_generate(wrong)) << wrong;
}

TEST(SglangRequest, HasDraftsForOnePromptOrForEach) {
    const auto one =
        parse_sglang_generate(R"({"text": "a", "draft_ids": [5, 6], "draft_key": "k"})");
    ASSERT_TRUE(one) << one.error().message;
    EXPECT_EQ(one->prompts[0].draft_ids, (std::vector{TokenId{5}, TokenId{6}}));
    EXPECT_EQ(one->prompts[0].draft_key, "k");
    const auto two =
        parse_sglang_generate(R"({"text": ["a", "b"], "draft_ids": [null, [7]], "draft_key": "x"})"
        );
    ASSERT_TRUE(two) << two.error().message;
    EXPECT_FALSE(two->prompts[0].draft_ids);
    EXPECT_EQ(two->prompts[1].draft_ids, (std::vector{TokenId{7}}));
    EXPECT_EQ(two->prompts[0].draft_key, "x");
    EXPECT_EQ(two->prompts[1].draft_key, "x");
    for (const char* wrong :
         {R"({"text": "a", "draft_ids": "x"})",
          R"({"text": "a", "draft_ids": [[1]]})",
          R"({"text": ["a", "b"], "draft_ids": [1, 2]})",
          R"({"text": ["a", "b"], "draft_ids": [[1]]})",
          R"({"text": "a", "draft_key": 7})",
          R"({"text": "a", "draft_key": ""})"}) {
        const auto refused = parse_sglang_generate(wrong);
        ASSERT_FALSE(refused) << wrong;
        EXPECT_NE(refused.error().message.find("draft_"), std::string::npos) << wrong;
    }
}

TEST(OpenAiRequest, HasDrafts) {
    const auto call =
        parse_openai_completions(R"({"prompt": [1, 2], "draft_ids": [5], "draft_key": "k"})");
    ASSERT_TRUE(call) << call.error().message;
    EXPECT_EQ(call->options.request().draft_ids, (std::vector{TokenId{5}}));
    EXPECT_EQ(call->options.request().draft_key, "k");
    EXPECT_FALSE(parse_openai_completions(R"({"prompt": "a"})")->options.request().draft_ids);
}

TEST(OpenAiRequest, HasOpenAisDefaults) {
    const auto call = parse_openai_completions(R"({"prompt": [1, 2]})");
    ASSERT_TRUE(call) << call.error().message;
    EXPECT_EQ(call->prompts.size(), 1U);
    EXPECT_EQ(call->options.sampling.max_new_tokens, 16);
    EXPECT_EQ(call->options.logprobs_mode, messages::LogprobsMode::kRaw);
    EXPECT_FALSE(call->logprobs);
}

TEST(VllmRequest, KeepsTheTwoLevelsApart) {
    const auto call = parse_vllm_generate(
        R"({"token_ids": [1], "priority": 3,
            "sampling_params": {"temperature": 0.5, "max_tokens": 2, "logprobs": 0, "n": 2}})"
    );
    ASSERT_TRUE(call) << call.error().message;
    EXPECT_EQ(call->options.sampling.temperature, 0.5);
    EXPECT_EQ(call->options.sampling.max_new_tokens, 2);
    EXPECT_EQ(call->options.n, 2);
    EXPECT_EQ(call->logprobs, 0);
    EXPECT_EQ(call->options.priority, -3);  // in vLLM the lower value is first
    EXPECT_FALSE(parse_vllm_generate(R"({"token_ids": [], "sampling_params": {}})"));
    const auto beside = parse_vllm_generate(
        R"({"token_ids": [1], "temperature": 0.1, "sampling_params": {"max_tokens": 2}})"
    );
    ASSERT_FALSE(beside);
    EXPECT_NE(beside.error().message.find("temperature"), std::string::npos);
}

TEST(Requests, AnyDamageIsRefusedOrValid) {
    std::mt19937 random(7);
    for (int round = 0; round < 3000; ++round) {
        std::string body = kSglang;
        for (int i = 0; i <= round % 3; ++i)
            body[random() % body.size()] = static_cast<char>(random() % 256);
        if (random() % 4 == 0) body.resize(random() % body.size());
        if (const auto call = parse_sglang_generate(body)) {
            for (const messages::Generate& prompt : call->prompts)
                EXPECT_FALSE(messages::invalid(prompt));
        }
        (void)parse_openai_completions(body).has_value();
        (void)parse_vllm_generate(body).has_value();
    }
}

}  // namespace
}  // namespace pitstop::http
