// Calls of tools in a model's output, whole and in pieces.
#include "http_proc/format/tool_calls.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

void PrintTo(const ToolCall& call, std::ostream* out) { *out << call.name << call.arguments; }

namespace {

using Parsed = ToolCallParser::Part;

Parsed in_pieces(ToolFormat format, std::string_view output, std::size_t piece_len) {
    ToolCallParser parser(format);
    Parsed parsed;
    for (std::size_t at = 0; at < output.size(); at += piece_len)
        parsed.append(parser.append(output.substr(at, piece_len)));
    parsed.append(parser.finish());
    EXPECT_EQ(parser.has_calls(), !parsed.calls.empty());
    return parsed;
}

// What is told does not depend on the pieces it comes in.
Parsed parse(ToolFormat format, std::string_view output) {
    const Parsed whole = in_pieces(format, output, output.size() + 1);
    for (std::size_t len = 1; len <= output.size(); ++len) {
        const Parsed other = in_pieces(format, output, len);
        EXPECT_EQ(other.text, whole.text) << len << " bytes at a time";
        EXPECT_EQ(other.calls, whole.calls) << len << " bytes at a time";
        EXPECT_EQ(other.places, whole.places) << len << " bytes at a time";
    }
    return whole;
}

struct Case {
    ToolFormat format{};
    std::string_view output{};
    std::string_view text{};
    std::vector<ToolCall> calls{};
};

void check(const std::vector<Case>& cases) {
    for (const Case& one : cases) {
        SCOPED_TRACE(one.output);
        const Parsed parsed = parse(one.format, one.output);
        EXPECT_EQ(parsed.text, one.text);
        EXPECT_EQ(parsed.calls, one.calls);
    }
}

constexpr auto kHermes = ToolFormat::kHermes;
constexpr auto kLlama3 = ToolFormat::kLlama3;
constexpr auto kMistral = ToolFormat::kMistral;
const ToolCall kWeather{"weather", R"({"city":"Paris","days":2})"};
const ToolCall kTime{"time", "{}"};

TEST(ToolCalls, HermesCallsStandBetweenMarkers) {
    check({
        {kHermes,
         "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 2}}\n"
         "</tool_call>",
         "",
         {kWeather}},
        {kHermes,
         "Let me look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\", "
         "\"days\": 2}}\n</tool_call>\n<tool_call>{\"name\": \"time\"}</tool_call>\n",
         "Let me look.\n",
         {kWeather, kTime}},
        {kHermes,
         "\n\n<tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call> and then",
         " and then",
         {kTime}},
    });
}

TEST(ToolCalls, LlamasCallsAreAllOfTheOutput) {
    check({
        {kLlama3, R"({"name": "time", "parameters": {}})", "", {kTime}},
        {kLlama3,
         R"(<|python_tag|>{"name": "weather", "parameters": {"city": "Paris", "days": 2}}; )"
         R"({"name": "time", "parameters": {}})",
         "",
         {kWeather, kTime}},
        {kLlama3, R"(Well: <|python_tag|>{"name": "time"})", "Well: ", {kTime}},
        {kLlama3,
         R"({"name": "time"} That is all. {"name": "time"})",
         R"( That is all. {"name": "time"})",
         {kTime}},
    });
}

TEST(ToolCalls, MistralsCallsAreAListOrHaveTheirNameInFront) {
    check({
        {kMistral,
         R"([TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris", "days": 2}}, )"
         R"({"name": "time", "arguments": {}}])",
         "",
         {kWeather, kTime}},
        {kMistral,
         R"(Yes.[TOOL_CALLS]weather{"city": "Paris", "days": 2}[TOOL_CALLS]time[ARGS]{})",
         "Yes.",
         {kWeather, kTime}},
    });
}

TEST(ToolCalls, WhatIsMalformedStaysTheTextItIs) {
    std::vector<Case> cases;
    for (const std::string_view output :
         {"<tool_call>",
          "<tool_call></tool_call>",
          "<tool_call>{\"name\": \"time\"",
          "<tool_call>{\"name\": 5}</tool_call>",
          "<tool_call>[1]</tool_call>",
          "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
          "<tool_call>{\"name\": \"f\", \"arguments\": \"{nope\"}</tool_call>",
          "<tool_call>nonsense</tool_call> x",
          "\n <tool_call>{oops}",
          "a < b and <tool_cal",
          "</tool_call>",
          "  ",
          ""})
        cases.push_back({kHermes, output, output, {}});
    for (const std::string_view output :
         {"{\"answer\": 42}",
          "{\"name\": \"f\"",
          "{nope}",
          "<|python_tag|>",
          "<|python_tag|>print(1)",
          "It is {\"name\": \"f\"}",
          "<|python",
          "  "})
        cases.push_back({kLlama3, output, output, {}});
    for (const std::string_view output :
         {"[TOOL_CALLS]",
          "[TOOL_CALLS] []",
          "[TOOL_CALLS] [{\"name\": 1}]",
          "[TOOL_CALLS] [{",
          "[TOOL_CALLS]f",
          "[TOOL_CALLS]f[ARGS]",
          "[TOOL_CALLS]f[ARG",
          "[TOOL_CALLS]f[ARGS]x",
          "[TOOL_CALLS]f{]",
          "[TOOL_CALLS]not a name{}",
          "[TOOL_CALLS]{}",
          "[TOOL"})
        cases.push_back({kMistral, output, output, {}});
    check(cases);
}

TEST(ToolCalls, AMalformedCallHidesNoneThatFollows) {
    check({
        {kHermes,
         "<tool_call>{oops}</tool_call><tool_call>{\"name\": \"time\"}</tool_call>",
         "<tool_call>{oops}</tool_call>",
         {kTime}},
        {kMistral, "[TOOL_CALLS]?[TOOL_CALLS]time{}", "[TOOL_CALLS]?", {kTime}},
    });
}

TEST(ToolCalls, ALastCallMayLackItsClosingMarker) {
    check({{kHermes, "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n", "", {kTime}}});
}

TEST(ToolCalls, ArgumentsKeepTheirOrderAndMayBeAText) {
    check({
        {kHermes,
         R"(<tool_call>{"name": "f", "arguments": {"z": "a\"}", "a": [1.5, null, {"b": "]"}]}}</tool_call>)",
         "",
         {{"f", R"({"z":"a\"}","a":[1.5,null,{"b":"]"}]})"}}},
        {kLlama3, R"({"name": "f", "parameters": "{\"x\": 1}"})", "", {{"f", R"({"x":1})"}}},
        {kLlama3, R"({"name": "f", "parameters": {"q": "};{"}})", "", {{"f", R"({"q":"};{"})"}}},
        {kHermes,
         "<tool_call>{\"name\": \"f\", \"arguments\": {\"wo\": \"Köln 中\"}}</tool_call>",
         "",
         {{"f", "{\"wo\":\"Köln 中\"}"}}},
    });
}

TEST(ToolCalls, TextIsToldAsSoonAsItCanBeNoMarker) {
    ToolCallParser parser(kHermes);
    EXPECT_EQ(parser.append("Hello").text, "Hello");
    EXPECT_EQ(parser.append(" <tool").text, " ");
    EXPECT_EQ(parser.append("box>").text, "<toolbox>");
    EXPECT_TRUE(parser.append("<tool_call>{\"name\"").text.empty());
    EXPECT_TRUE(parser.append(": \"time\"}").calls.empty());
    EXPECT_EQ(parser.append("</tool_call>").calls, std::vector{kTime});
}

TEST(ToolCalls, JsonThatIsNestedTooDeepIsText) {
    const std::string deep = R"({"name": "f", "parameters": )" + std::string(10'000, '[');
    EXPECT_EQ(in_pieces(kLlama3, deep, 100).text, deep);
    const std::string closed = R"({"name": "f", "parameters": {"a": )" + std::string(10'000, '[') +
                               std::string(10'000, ']') + "}}";
    EXPECT_EQ(in_pieces(kLlama3, closed, 100).text, closed);
}

TEST(ToolCalls, ALongHeldTextIsLookedAtOnce) {
    // Quadratic time would be minutes.
    for (const auto& [format, opening] :
         {std::pair{kHermes, "<tool_call>"},
          {kLlama3, "{\"a\":\""},
          {kMistral, "[TOOL_CALLS][\""}}) {
        ToolCallParser parser(format);
        std::string text;
        text += parser.append(opening).text;
        for (int i = 0; i < 2'000'000; ++i) text += parser.append("x").text;
        text += parser.finish().text;
        EXPECT_EQ(text.size(), 2'000'000 + std::string_view(opening).size());
    }
}

TEST(ToolCalls, TextAndCallsAreToldInTheOrderTheyWereWrittenIn) {
    const Parsed parsed = parse(
        kHermes,
        R"(a <tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call> b)"
        R"(<tool_call>{"name": "h"}</tool_call>)"
    );
    std::vector<std::string> told;
    parsed.visit(
        [&](std::string_view text) { told.push_back("text " + std::string(text)); },
        [&](const ToolCall& call) { told.push_back("call " + call.name); }
    );
    EXPECT_EQ(told, (std::vector<std::string>{"text a ", "call f", "call g", "text  b", "call h"}));
}

TEST(ToolCalls, FormatsHaveTheEnginesNames) {
    EXPECT_EQ(tool_format_named("qwen25"), kHermes);
    EXPECT_EQ(tool_format_named("hermes"), kHermes);
    EXPECT_EQ(tool_format_named("llama3_json"), kLlama3);
    EXPECT_EQ(tool_format_named("mistral"), kMistral);
    EXPECT_FALSE(tool_format_named("pythonic"));
    EXPECT_FALSE(tool_format_named(""));
}

}  // namespace
}  // namespace pitstop::http
