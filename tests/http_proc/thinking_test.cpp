// A model's thinking separated from its answer, whole and in pieces.
#include "http_proc/format/thinking.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {
namespace {

using Start = ThinkingParser::Start;
using Part = ThinkingParser::Part;

void add(Part& sum, const Part& next) {
    sum.thinking += next.thinking;
    sum.answer += next.answer;
}

// `cuts` are the ends of the pieces before the last one.
Part in_pieces(
    const ThinkingFormat& format,
    Start start,
    std::string_view output,
    const std::vector<std::size_t>& cuts
) {
    ThinkingParser parser(format, start);
    Part sum;
    std::size_t begin = 0;
    for (const std::size_t cut : cuts) {
        add(sum, parser.append(output.substr(begin, cut - begin)));
        begin = cut;
    }
    add(sum, parser.append(output.substr(begin)));
    add(sum, parser.finish());
    return sum;
}

// Parses the output whole, in every split in two, and byte by byte; expects equal results.
Part parse(const ThinkingFormat& format, Start start, std::string_view output) {
    const Part whole = in_pieces(format, start, output, {});
    const auto check = [&](const std::vector<std::size_t>& cuts) {
        const Part other = in_pieces(format, start, output, cuts);
        EXPECT_EQ(other.thinking, whole.thinking) << testing::PrintToString(cuts);
        EXPECT_EQ(other.answer, whole.answer) << testing::PrintToString(cuts);
    };
    std::vector<std::size_t> every;
    for (std::size_t cut = 1; cut < output.size(); ++cut) {
        check({cut});
        every.push_back(cut);
    }
    check(every);
    return whole;
}

struct Case {
    std::string_view output{};
    std::string_view thinking{};
    std::string_view answer{};
};

void check(std::string_view name, Start start, const std::vector<Case>& cases) {
    const auto format = thinking_format_named(name);
    ASSERT_TRUE(format) << name;
    for (const Case& one : cases) {
        SCOPED_TRACE(one.output);
        const Part part = parse(*format, start, one.output);
        EXPECT_EQ(part.thinking, one.thinking);
        EXPECT_EQ(part.answer, one.answer);
    }
}

TEST(Thinking, MarkersAloneAreLeftOut) {
    check(
        "qwen3",
        Start::kOutside,
        {{"<think>\nLet me see.\n</think>\n\nIt is noon.", "\nLet me see.\n", "\n\nIt is noon."},
         {"\n<think>so</think>then", "so", "then"},
         {"<think></think>now", "", "now"},
         {"It is noon.", "", "It is noon."},
         {" a <think>b</think>", "", " a <think>b</think>"},
         {"<think>a < b </thin", "a < b </thin", ""},
         {"<think>a</think>b</think>c", "a", "b</think>c"},
         {"<thi", "", "<thi"},
         {"  ", "", "  "},
         {"", "", ""}}
    );
    check("kimi", Start::kOutside, {{"◁think▷müde ◁/think▷wach", "müde ", "wach"}});
    check("mistral", Start::kOutside, {{"[THINK]a[b[/THINK]c", "a[b", "c"}});
}

TEST(Thinking, AnOutputMayBeginInside) {
    check(
        "deepseek-r1",
        Start::kInside,
        {{"Let me see.</think>noon", "Let me see.", "noon"},
         {"<think>\nLet me see.</think>noon", "\nLet me see.", "noon"},
         {"\nno end", "\nno end", ""},
         {"<th", "<th", ""}}
    );
}

TEST(Thinking, ACallEndsItWithoutAMarker) {
    check(
        "qwen3",
        Start::kInside,
        {{"I call.<tool_call>{}</tool_call>", "I call.", "<tool_call>{}</tool_call>"},
         {"a</think><tool_call>", "a", "<tool_call>"}}
    );
    check(
        "kimi_k2",
        Start::kInside,
        {{"x<tool_call><|tool_calls_section_begin|>y",
          "x<tool_call>",
          "<|tool_calls_section_begin|>y"}}
    );
}

TEST(Thinking, TextIsReportedAsSoonAsItCanBeNoMarker) {
    ThinkingParser parser(*thinking_format_named("qwen3"), Start::kInside);
    EXPECT_EQ(parser.append("Hello").thinking, "Hello");
    EXPECT_EQ(parser.append(" </th").thinking, " ");
    EXPECT_FALSE(parser.is_in_answer());
    EXPECT_EQ(parser.append("ink>Now").answer, "Now");
    EXPECT_TRUE(parser.is_in_answer());
}

TEST(Thinking, ThePromptsEndSaysWhereTheOutputBegins) {
    const ThinkingFormat qwen3 = *thinking_format_named("qwen3");
    const ThinkingFormat r1 = *thinking_format_named("deepseek_r1");
    for (const ThinkingFormat& format : {qwen3, r1}) {
        EXPECT_EQ(start_after(format, "<|im_start|>assistant\n<think>\n"), Start::kInside);
        EXPECT_EQ(start_after(format, "assistant\n<think>\n\n</think>\n\n"), Start::kOutside);
    }
    EXPECT_EQ(start_after(qwen3, "user\nwhat is <think>?\nassistant\n"), Start::kOutside);
    EXPECT_EQ(start_after(r1, "<｜Assistant｜>"), Start::kInside);
    EXPECT_EQ(start_within(qwen3, "<think>\nLet me"), Start::kInside);
    EXPECT_EQ(start_within(qwen3, "<think>\nLet me</think> It"), Start::kOutside);
    EXPECT_EQ(start_within(qwen3, "It"), Start::kOutside);
}

TEST(Thinking, TwoMarkersAreAFormat) {
    check("<a> </a>", Start::kOutside, {{"<a>x</a>y", "x", "y"}, {"<think>x", "", "<think>x"}});
    for (const std::string_view wrong : {"", "qwen", "<a>", "<a> ", " </a>", "<a> <a>", "a b c"}) {
        const auto format = thinking_format_named(wrong);
        ASSERT_FALSE(format) << wrong;
        EXPECT_NE(format.error().message.find("deepseek-r1"), std::string::npos);
    }
}

TEST(Thinking, ATemplateShowsItsFormat) {
    const auto found = [](std::string_view text) {
        const auto format = thinking_format_in(text);
        return format ? format->open + " " + format->interrupted_by : "none";
    };
    EXPECT_EQ(found("{{ '<think>' + message.reasoning_content + '</think>' }}"), "<think> ");
    EXPECT_EQ(found("{% if '</think>' in content %}<tool_call>"), "<think> <tool_call>");
    EXPECT_EQ(found("◁think▷"), "◁think▷ ");
    EXPECT_EQ(found("{{ messages[0].content }}"), "none");
    EXPECT_EQ(found(""), "none");
}

TEST(Thinking, TimeIsLinear) {
    // Quadratic time would take minutes.
    const auto begin = std::chrono::steady_clock::now();
    for (const std::string_view unit : {"x", "<", "</think", " "}) {
        ThinkingParser parser(*thinking_format_named("qwen3"), Start::kInside);
        std::size_t num_bytes = 0;
        for (int i = 0; i < 500'000; ++i) num_bytes += parser.append(unit).thinking.size();
        num_bytes += parser.finish().thinking.size();
        EXPECT_EQ(num_bytes, 500'000 * unit.size());
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
}

}  // namespace
}  // namespace pitstop::http
