#include "messages/context_limit.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace pitstop::messages {
namespace {

TEST(ContextLimit, ItsErrorTellsItsNumbers) {
    const ContextLimit limit{.prompt_len = 4011, .output_len = 5, .context_len = 1024};
    const Error error = beyond_context(limit);
    EXPECT_EQ(
        error.message,
        "4011 prompt tokens and 5 output tokens are more than the model's context of 1024 tokens"
    );
    EXPECT_EQ(context_limit_of(error), limit);
    constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
    const ContextLimit most{.prompt_len = kMost, .output_len = kMost, .context_len = 0};
    EXPECT_EQ(context_limit_of(beyond_context(most)), most);
}

TEST(ContextLimit, AnotherErrorTellsNone) {
    const std::string message = beyond_context({.prompt_len = 4, .output_len = 5}).message;
    const auto is_other = [](ErrorCode code, const std::string& text) {
        return !context_limit_of({code, text});
    };
    EXPECT_TRUE(is_other(ErrorCode::kTooLarge, message));
    EXPECT_TRUE(is_other(ErrorCode::kInvalidArgument, ""));
    EXPECT_TRUE(is_other(ErrorCode::kInvalidArgument, message + "."));
    EXPECT_TRUE(is_other(ErrorCode::kInvalidArgument, "1" + std::string(30, '0') + message));
    for (std::size_t len = 0; len < message.size(); ++len)
        EXPECT_TRUE(is_other(ErrorCode::kInvalidArgument, message.substr(0, len))) << len;
}

TEST(ContextLimit, FitsUpToTheLastToken) {
    constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
    EXPECT_TRUE((ContextLimit{.prompt_len = 3, .output_len = 2, .context_len = 5}.fits()));
    EXPECT_TRUE((ContextLimit{.prompt_len = 5, .output_len = 0, .context_len = 5}.fits()));
    EXPECT_FALSE((ContextLimit{.prompt_len = 4, .output_len = 2, .context_len = 5}.fits()));
    EXPECT_FALSE((ContextLimit{.prompt_len = 4, .output_len = kMost, .context_len = 5}.fits()));
}

}  // namespace
}  // namespace pitstop::messages
