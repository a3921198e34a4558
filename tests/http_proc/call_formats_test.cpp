// Every format of calls, under every name that --tool-call-parser accepts. Each output has the same
// text and the same two calls, and is parsed whole, in every split of its bytes, and cut off
// anywhere. The outputs are written by hand in the form of the models' chat templates.
#include "http_proc/format/harmony.h"
#include "http_proc/format/tool_calls.h"
#include "tests/http_proc/turn_printing.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {
namespace {

const auto kSchemas = std::make_shared<const ToolSchemas>(nlohmann::json::parse(R"([
    {"name": "weather", "parameters": {"properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "near": {"type": "array"}}}},
    {"name": "time", "parameters": {"properties": {"zone": {"type": "string"}}}}
])"));

constexpr std::string_view kWeather =
    R"({"city":"Köln \"</x>\"\n, 中","days":2,"near":[1.5,{"a":null,"b":"]}"},true]})";
constexpr std::string_view kTime = R"({"zone":"UTC"})";

struct Written {
    ToolFormat format{};
    std::string text{};  // before the calls; empty in formats that begin with a call
    std::string output{};
    std::vector<std::string> ids{"", ""};
};

// Makes GLM's output, with `line` between the tags.
std::string glm_of(const std::string& line, const std::string& near) {
    const auto pair = [&](const std::string& key, const std::string& value) {
        return line + "<arg_key>" + key + "</arg_key>" + line + "<arg_value>" + value +
               "</arg_value>";
    };
    return "So: <tool_call>weather" + pair("city", "Köln \"</x>\"\n, 中") + pair("days", "2") +
           pair("near", near) + line + "</tool_call>" + line + "<tool_call>time" +
           pair("zone", "UTC") + line + "</tool_call>";
}

std::vector<Written> outputs() {
    // Templates write JSON with spaces.
    const std::string weather =
        R"({"city": "Köln \"</x>\"\n, 中", "days": 2, "near": [1.5, {"a": null, "b": "]}"}, true]})";
    const std::string time = R"({"zone": "UTC"})";
    const std::string near = R"([1.5, {"a": null, "b": "]}"}, true])";
    return {
        {ToolFormat::kHermes,
         "So: ",
         "So: <tool_call>\n{\"name\": \"weather\", \"arguments\": " + weather +
             "}\n</tool_call>\n<tool_call>\n{\"name\": \"time\", \"arguments\": " + time +
             "}\n</tool_call>"},
        {ToolFormat::kLlama3,
         "",
         R"({"name": "weather", "parameters": )" + weather +
             R"(}; {"name": "time", "parameters": )" + time + "}"},
        {ToolFormat::kMistral,
         "So: ",
         R"(So: [TOOL_CALLS][{"name": "weather", "arguments": )" + weather +
             R"(}, {"name": "time", "arguments": )" + time + "}]"},
        {ToolFormat::kQwen3Coder,
         "So: ",
         "So: <tool_call>\n<function=weather>\n<parameter=city>\nKöln \"</x>\"\n, "
         "中\n</parameter>\n"
         "<parameter=days>\n2\n</parameter>\n<parameter=near>\n" +
             near +
             "\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=time>\n"
             "<parameter=zone>\nUTC\n</parameter>\n</function>\n</tool_call>"},
        {ToolFormat::kGlm45, "So: ", glm_of("\n", near)},
        {ToolFormat::kGlm47, "So: ", glm_of("", near)},
        {ToolFormat::kKimiK2,
         "So: ",
         "So: <|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
         "<|tool_call_argument_begin|>" +
             weather +
             "<|tool_call_end|><|tool_call_begin|>functions.time:1<|tool_call_argument_begin|>" +
             time + "<|tool_call_end|><|tool_calls_section_end|>",
         {"functions.weather:0", "functions.time:1"}},
        {ToolFormat::kDeepseekV3,
         "So: ",
         "So: <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n" +
             weather +
             "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```"
             "json\n" +
             time + "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
        {ToolFormat::kDeepseekV31,
         "So: ",
         "So: <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>" + weather +
             "<｜tool▁call▁end｜><｜tool▁call▁begin｜>time<｜tool▁sep｜>" + time +
             "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
        {ToolFormat::kPythonic,
         "",
         R"([weather(city='Köln "</x>"\n, 中', days=2, near=[1.5, {'a': None, "b": ']}'}, True]), )"
         R"(time(zone="UTC")])"},
        {ToolFormat::kHarmony,
         "So: ",
         "<|channel|>commentary<|message|>So: <|end|><|start|>assistant<|channel|>commentary "
         "to=functions.weather <|constrain|>json<|message|>" +
             weather +
             "<|call|><|start|>assistant to=functions.time<|channel|>commentary json<|message|>" +
             time + "<|call|>"},
    };
}

// Parses any format with the one of the two parsers that reads it.
class AnyParser {
  public:
    explicit AnyParser(ToolFormat format) {
        if (format == ToolFormat::kHarmony) {
            messages_.emplace(HarmonyParser::Reads{});
        } else {
            calls_.emplace(format, kSchemas);
        }
    }
    TurnPieces append(std::string_view piece) {
        return calls_ ? calls_->append(piece) : messages_->append(piece);
    }
    TurnPieces finish() { return calls_ ? calls_->finish() : messages_->finish(); }

  private:
    std::optional<ToolCallParser> calls_{};
    std::optional<HarmonyParser> messages_{};
};

TurnPieces in_pieces(
    ToolFormat format, std::string_view output, std::size_t first, std::size_t len
) {
    AnyParser parser(format);
    TurnPieces pieces = parser.append(output.substr(0, first));
    for (std::size_t at = first; at < output.size(); at += len)
        pieces.append(parser.append(output.substr(at, len)));
    pieces.append(parser.finish());
    return pieces;
}

std::vector<TurnItem> expected(const Written& one) {
    std::vector<TurnItem> items;
    if (!one.text.empty()) items.push_back({.kind = TurnItem::Kind::kText, .text = one.text});
    const auto call = [&](std::string name, std::string_view arguments, const std::string& id) {
        items.push_back(
            {.kind = TurnItem::Kind::kCall,
             .call = {.name = std::move(name), .arguments = std::string(arguments), .id = id}}
        );
    };
    call("weather", kWeather, one.ids[0]);
    call("time", kTime, one.ids[1]);
    return items;
}

TEST(CallFormats, EachNameHasItsFormatsOutput) {
    for (const ToolFormatName& name : kToolFormats) {
        int num = 0;
        for (const Written& one : outputs()) num += one.format == name.format ? 1 : 0;
        EXPECT_EQ(num, 1) << name.name;
    }
}

TEST(CallFormats, TheCallsAreTheSameInEverySplitOfTheirBytes) {
    for (const Written& one : outputs()) {
        SCOPED_TRACE(one.output);
        const std::size_t len = one.output.size();
        const TurnPieces whole = in_pieces(one.format, one.output, len, len);
        EXPECT_EQ(whole_items(whole), expected(one));
        for (std::size_t cut = 0; cut < len; ++cut)
            ASSERT_EQ(in_pieces(one.format, one.output, cut, len).list(), whole.list()) << cut;
        for (std::size_t step = 1; step <= 7; ++step)
            ASSERT_EQ(in_pieces(one.format, one.output, 0, step).list(), whole.list()) << step;
    }
}

// A cut output has the calls that were whole before the cut, unchanged, and no other call.
TEST(CallFormats, AnOutputThatIsCutOffHasTheCallsThatAreWhole) {
    for (const Written& one : outputs()) {
        SCOPED_TRACE(one.output);
        const std::vector<TurnItem> all =
            whole_items(in_pieces(one.format, one.output, one.output.size(), one.output.size()));
        std::size_t num_before = 0;
        for (std::size_t len = 0; len <= one.output.size(); ++len) {
            const std::string_view cut = std::string_view(one.output).substr(0, len);
            const TurnPieces pieces = in_pieces(one.format, cut, len, 1);
            ASSERT_EQ(in_pieces(one.format, cut, 0, 1).list(), pieces.list()) << len;
            std::vector<ToolCall> calls;
            for (const TurnItem& item : whole_items(pieces))
                if (item.kind == TurnItem::Kind::kCall) calls.push_back(item.call);
            ASSERT_GE(calls.size(), num_before) << len;
            ASSERT_LE(calls.size(), 2u);
            num_before = calls.size();
            for (std::size_t i = 0; i < calls.size(); ++i)
                ASSERT_EQ(calls[i], all[all.size() - 2 + i].call) << len;
        }
        EXPECT_EQ(num_before, 2u);
    }
}

// Arguments arrive before the call has ended, in every format whose syntax allows it.
TEST(CallFormats, ArgumentsAreStreamedInPieces) {
    for (const Written& one : outputs()) {
        SCOPED_TRACE(one.output);
        AnyParser parser(one.format);
        std::string arguments;
        std::size_t num_pieces = 0;
        bool has_call = false;
        for (const char c : one.output) {
            const TurnPieces pieces = parser.append(std::string_view(&c, 1));
            for (const TurnPiece& piece : pieces.list()) {
                if (piece.kind == TurnPiece::Kind::kCall) has_call = true;
                if (piece.kind == TurnPiece::Kind::kCallEnd) break;
                if (piece.kind != TurnPiece::Kind::kArguments) continue;
                ASSERT_TRUE(has_call);
                arguments += piece.text;
                ++num_pieces;
            }
            if (arguments.size() >= kWeather.size()) break;
        }
        EXPECT_EQ(arguments, kWeather);
        EXPECT_GE(num_pieces, 20u);
    }
}

}  // namespace
}  // namespace pitstop::http
