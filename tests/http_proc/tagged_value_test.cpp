// Finds the end of values that are written without quotes and contain the tag that ends values.
#include "http_proc/format/tool_calls.h"
#include "tests/http_proc/turn_printing.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {
namespace {

const auto kSchemas = std::make_shared<const ToolSchemas>(nlohmann::json::parse(R"([
    {"name": "weather", "parameters": {"properties": {
        "city": {"type": "string"}, "near": {"type": "array"}, "at": {"type": "object"}}}}
])"));

TurnPieces in_pieces(ToolFormat format, std::string_view output, std::size_t len) {
    ToolCallParser parser(format, kSchemas);
    TurnPieces pieces;
    for (std::size_t at = 0; at < output.size(); at += len)
        pieces.append(parser.append(output.substr(at, len)));
    pieces.append(parser.finish());
    return pieces;
}

// Parses the output in pieces of every length, and expects equal results.
std::vector<TurnItem> items_of(ToolFormat format, std::string_view output) {
    const TurnPieces whole = in_pieces(format, output, output.size() + 1);
    for (std::size_t len = 1; len < output.size(); ++len)
        EXPECT_EQ(in_pieces(format, output, len).list(), whole.list()) << len;
    return whole_items(whole);
}

// The arguments of the only call.
std::string arguments_of(ToolFormat format, std::string_view output) {
    const std::vector<TurnItem> items = items_of(format, output);
    EXPECT_EQ(items.size(), 1u) << output;
    return items.empty() ? std::string() : items.front().call.arguments;
}

std::string coder(std::string_view parameters) {
    return arguments_of(
        ToolFormat::kQwen3Coder,
        "<tool_call>\n<function=weather>\n" + std::string(parameters) + "</function>\n</tool_call>"
    );
}

TEST(TaggedValue, ATagInAJsonStringDoesNotEndAnObjectOrAList) {
    EXPECT_EQ(
        coder("<parameter=at>\n{\"a\": \"x\\n</parameter>\\n\", \"b\": [\"</parameter>\"]}\n"
              "</parameter>\n<parameter=city>\nRome\n</parameter>\n"),
        R"({"at":{"a":"x\n</parameter>\n","b":["</parameter>"]},"city":"Rome"})"
    );
    EXPECT_EQ(
        arguments_of(
            ToolFormat::kGlm47,
            "<tool_call>weather<arg_key>near</arg_key><arg_value>[\"</arg_value>\"]</arg_value>"
            "</tool_call>"
        ),
        R"({"near":["</arg_value>"]})"
    );
}

TEST(TaggedValue, AValueThatIsNoJsonEndsAtTheFirstTag) {
    EXPECT_EQ(
        coder("<parameter=at>\n{\"a\": \"x</parameter>\n<parameter=city>\n\"Rome\"\n</parameter>\n"
        ),
        R"({"at":"{\"a\": \"x","city":"\"Rome\""})"
    );
    EXPECT_EQ(
        coder("<parameter=at>\n{\"a\": \"</parameter>\"} b\n</parameter>\n"),
        R"({"at":"{\"a\": \"</parameter>\"} b"})"
    );
    EXPECT_EQ(
        arguments_of(
            ToolFormat::kQwen3Coder, "<function=weather><parameter=near>[\"</parameter></function>"
        ),
        R"({"near":"[\""})"
    );
}

TEST(TaggedValue, ACallThatIsNoneAfterThatTagIsText) {
    for (const std::string_view output :
         {"<function=weather><parameter=near>[\"</parameter>x",
          "<function=weather><parameter=near>[\"</parameter>\", "}) {
        const std::vector<TurnItem> text{
            {.kind = TurnItem::Kind::kText, .text = std::string(output)}};
        EXPECT_EQ(items_of(ToolFormat::kQwen3Coder, output), text);
    }
}

}  // namespace
}  // namespace pitstop::http
