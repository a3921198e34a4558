#include "http_proc/server/errors.h"

#include "messages/context_limit.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <limits>
#include <string>

namespace pitstop::http {
namespace {

using nlohmann::json;

json error_of(Dialect dialect, const messages::ContextLimit& limit) {
    const Response response = error_response(dialect, messages::beyond_context(limit));
    EXPECT_EQ(response.status, 400);
    return json::parse(response.body).at("error");
}

constexpr messages::ContextLimit kLongPrompt{
    .prompt_len = 4011, .output_len = 5, .context_len = 1024};
constexpr messages::ContextLimit kLongOutput{
    .prompt_len = 1000, .output_len = 25, .context_len = 1024};

// The expected texts are those that clients search for: litellm, langchain-openai and inspect-ai
// for OpenAI's code or "maximum context length", Anthropic's clients for "prompt is too long".
TEST(Errors, APromptThatIsTooLongIsSaidInTheDialectsWords) {
    const json openai = error_of(Dialect::kOpenAi, kLongPrompt);
    EXPECT_EQ(openai["code"], "context_length_exceeded");
    EXPECT_EQ(openai["type"], "invalid_request_error");
    EXPECT_EQ(
        openai["message"],
        "This model's maximum context length is 1024 tokens. However, you requested 4016 tokens "
        "(4011 in the prompt, 5 in the completion). Please reduce the length of the prompt or the "
        "completion."
    );
    const json vllm = error_of(Dialect::kVllm, kLongPrompt);
    EXPECT_EQ(vllm["message"], openai["message"]);
    EXPECT_EQ(vllm["code"], 400);
    EXPECT_EQ(
        error_of(Dialect::kAnthropic, kLongPrompt)["message"],
        "prompt is too long: 4011 tokens > 1024 maximum"
    );
    EXPECT_EQ(
        error_of(Dialect::kSglang, kLongPrompt)["message"],
        "The input (4011 tokens) is longer than the model's context length (1024 tokens)."
    );
}

TEST(Errors, AnOutputThatIsTooLongIsSaidInTheDialectsWords) {
    EXPECT_EQ(error_of(Dialect::kOpenAi, kLongOutput)["code"], "context_length_exceeded");
    EXPECT_EQ(
        error_of(Dialect::kAnthropic, kLongOutput)["message"],
        "input length and `max_tokens` exceed context limit: 1000 + 25 > 1024, decrease input "
        "length or `max_tokens` and try again"
    );
    const std::string sglang = error_of(Dialect::kSglang, kLongOutput)["message"];
    EXPECT_TRUE(sglang.starts_with(
        "Requested token count exceeds the model's maximum context length of 1024 tokens. You "
        "requested a total of 1025 tokens: 1000 tokens from the input messages and 25 tokens for "
        "the completion."
    )) << sglang;
    constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
    const std::string most =
        error_of(Dialect::kVllm, {.prompt_len = kMost, .output_len = kMost})["message"];
    EXPECT_NE(most.find("18446744073709551614 tokens"), most.npos) << most;
}

TEST(Errors, AnotherErrorHasItsOwnWordsAndNoCode) {
    const Error error = make_error(ErrorCode::kInvalidArgument, "n is 0");
    const json openai = json::parse(error_json(Dialect::kOpenAi, 400, error))["error"];
    EXPECT_EQ(openai["message"], "n is 0");
    EXPECT_TRUE(openai["code"].is_null());
}

}  // namespace
}  // namespace pitstop::http
