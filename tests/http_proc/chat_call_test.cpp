// Tests what bodies of /v1/responses and /v1/messages become: the chat for the template, and the
// engine's request.
#include "http_proc/anthropic/messages_request.h"
#include "http_proc/openai/responses_request.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <random>
#include <string>

namespace pitstop::http {
namespace {

using Json = nlohmann::ordered_json;

const std::string kMessages =
    R"({"model": "m", "max_tokens": 7, "stop_sequences": ["x"], "top_k": 3,
    "system": [{"type": "text", "text": "s1"}, {"type": "text", "text": "s2"}], "stream": true,
    "messages": [{"role": "user", "content": "u1"}, {"role": "user", "content": "u2"},
      {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f",
        "input": {"z": 1, "a": 2}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}],
    "tools": [{"name": "f", "input_schema": {"b": 1, "a": 2}}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}})";

const std::string kResponses = R"({"model": "m", "max_output_tokens": 7, "instructions": "i",
    "input": [{"role": "developer", "content": "d"}, {"role": "user", "content": "u1"},
      {"role": "user", "content": [{"type": "input_text", "text": "u2"},
                                   {"type": "input_text", "text": "u3"}]},
      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c", "output": "o"}],
    "tools": [{"type": "function", "name": "f", "parameters": {"b": 1, "a": 2}, "strict": true}],
    "parallel_tool_calls": false, "metadata": {"k": "v"}})";

TEST(AnthropicMessages, BecomeAChat) {
    const auto call = parse_anthropic_messages(kMessages);
    ASSERT_TRUE(call) << call.error().message;
    EXPECT_EQ(call->model, "m");
    EXPECT_TRUE(
        call->is_streamed && call->request.stream && call->has_tools && call->takes_one_call
    );
    EXPECT_EQ(call->request.sampling.max_new_tokens, 7);
    EXPECT_EQ(call->request.sampling.top_k, 3);
    EXPECT_EQ(call->request.sampling.stop, std::vector<std::string>{"x"});
    EXPECT_FALSE(call->chat.continue_final_message);
    const Json variables = Json::parse(call->chat.variables);
    EXPECT_EQ(
        variables["messages"].dump(),
        Json::parse(R"([
        {"role": "system", "content": [{"type": "text", "text": "s1"}, {"type": "text", "text": "s2"}]},
        {"role": "user", "content": [{"type": "text", "text": "u1"}, {"type": "text", "text": "u2"}]},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "t", "type": "function",
          "function": {"name": "f", "arguments": "{\"z\":1,\"a\":2}"}}]},
        {"role": "tool", "content": "", "tool_call_id": "t"}])")
            .dump()
    );
    EXPECT_EQ(
        variables["tools"].dump(),
        Json::parse(R"([{"type": "function", "function":
        {"name": "f", "parameters": {"b": 1, "a": 2}}}])")
            .dump()
    );
    EXPECT_EQ(variables["add_generation_prompt"], true);
}

TEST(AnthropicMessages, AreCountedWithoutAnOutput) {
    const std::string body = R"({"messages": [{"role": "user", "content": "u"}]})";
    EXPECT_TRUE(parse_anthropic_count(body));
    const auto refused = parse_anthropic_messages(body);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("max_tokens"), std::string::npos);
}

TEST(AnthropicMessages, TheAssistantsLastWordsAreGoneOnWith) {
    const auto call = parse_anthropic_messages(R"({"max_tokens": 1, "messages": [
        {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]})");
    ASSERT_TRUE(call) << call.error().message;
    EXPECT_TRUE(call->chat.continue_final_message);
    EXPECT_EQ(Json::parse(call->chat.variables)["add_generation_prompt"], false);
}

TEST(OpenAiResponses, BecomeAChat) {
    const auto given = parse_openai_responses(kResponses);
    ASSERT_TRUE(given) << given.error().message;
    EXPECT_TRUE(given->call.has_tools && given->call.takes_one_call);
    EXPECT_FALSE(given->call.is_streamed);
    EXPECT_EQ(given->call.request.sampling.max_new_tokens, 7);
    const Json variables = Json::parse(given->call.chat.variables);
    EXPECT_EQ(
        variables["messages"].dump(),
        Json::parse(R"([
        {"role": "system", "content": [{"type": "text", "text": "i"}, {"type": "text", "text": "d"}]},
        {"role": "user", "content": "u1"},
        {"role": "user", "content": [{"type": "text", "text": "u2"}, {"type": "text", "text": "u3"}]},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function",
          "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": "o", "tool_call_id": "c"}])")
            .dump()
    );
    EXPECT_EQ(
        variables["tools"].dump(),
        Json::parse(R"([{"type": "function", "function":
        {"name": "f", "parameters": {"b": 1, "a": 2}}}])")
            .dump()
    );
}

TEST(OpenAiResponses, ShowWhatIsServedOfTheRequest) {
    const auto given = parse_openai_responses(kResponses);
    ASSERT_TRUE(given);
    Json shown = Json::object();
    for (const auto& [name, json] : given->shown) shown[std::string(name)] = Json::parse(json);
    EXPECT_EQ(shown["store"], false);
    EXPECT_EQ(shown["instructions"], "i");
    EXPECT_EQ(shown["metadata"]["k"], "v");
    EXPECT_EQ(shown["tools"][0]["strict"], false);
    EXPECT_EQ(shown["parallel_tool_calls"], false);
    EXPECT_EQ(shown["tool_choice"], "auto");
    EXPECT_EQ(shown["temperature"], 1.0);
}

// After a change of any byte, the body is refused or accepted as a chat of messages.
TEST(ChatCall, NoChangedByteDoesMoreThanRefuse) {
    std::mt19937 random(1);
    const auto check = [](const Result<ChatCall>& call) {
        if (!call) return false;
        EXPECT_TRUE(Json::parse(call->chat.variables)["messages"].is_array());
        EXPECT_FALSE(messages::invalid(call->request.sampling));
        return true;
    };
    int num_taken = 0;
    for (int i = 0; i < 20000; ++i) {
        std::string body = i % 2 == 0 ? kMessages : kResponses;
        body[random() % body.size()] = static_cast<char>(random() % 256);
        if (i % 2 == 0) {
            num_taken += check(parse_anthropic_messages(body)) ? 1 : 0;
        } else if (auto given = parse_openai_responses(body)) {
            num_taken += check(std::move(given->call)) ? 1 : 0;
        }
    }
    EXPECT_GT(num_taken, 1000);
    EXPECT_LT(num_taken, 19000);
}

}  // namespace
}  // namespace pitstop::http
