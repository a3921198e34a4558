// Calls of tools in a model's output, whole and in pieces. The outputs are written by hand as the
// models' chat templates show the formats.
#include "http_proc/format/tool_calls.h"

#include "tests/http_proc/turn_printing.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

using Kind = TurnPiece::Kind;

const auto kSchemas = std::make_shared<const ToolSchemas>(nlohmann::json::parse(R"([
    {"type": "function", "function": {"name": "weather", "parameters": {"properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "wind": {"type": "boolean"},
        "near": {"type": "array"}, "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "unit": {"enum": ["C", "F"]}, "at": {"type": "object"}}}}},
    {"name": "time", "input_schema": {"properties": {"zone": {"type": ["string", "number"]}}}}
])"));

// `cuts` are the ends of the pieces before the last one.
TurnPieces in_pieces(
    ToolFormat format, std::string_view output, const std::vector<std::size_t>& cuts
) {
    ToolCallParser parser(format, kSchemas);
    TurnPieces pieces;
    std::size_t begin = 0;
    for (const std::size_t cut : cuts) {
        pieces.append(parser.append(output.substr(begin, cut - begin)));
        begin = cut;
    }
    pieces.append(parser.append(output.substr(begin)));
    pieces.append(parser.finish());
    return pieces;
}

// Parses the output whole, in every split in two, and byte by byte; expects equal joined pieces.
TurnPieces parse(ToolFormat format, std::string_view output) {
    const TurnPieces whole = in_pieces(format, output, {});
    std::vector<std::size_t> every;
    for (std::size_t cut = 1; cut < output.size(); ++cut) {
        EXPECT_EQ(in_pieces(format, output, {cut}).list(), whole.list()) << "cut at " << cut;
        every.push_back(cut);
    }
    EXPECT_EQ(in_pieces(format, output, every).list(), whole.list()) << "byte by byte";
    return whole;
}

TurnItem text(std::string_view words) {
    return {.kind = TurnItem::Kind::kText, .text = std::string(words)};
}
TurnItem call(std::string_view name, std::string_view arguments, std::string_view id = "") {
    return {
        .kind = TurnItem::Kind::kCall,
        .call = {
            .name = std::string(name), .arguments = std::string(arguments), .id = std::string(id)}};
}
const TurnItem kWeather = call("weather", R"({"city":"Paris","days":2})");
const TurnItem kTime = call("time", "{}");

struct Case {
    std::string_view output{};
    std::vector<TurnItem> items{};
};

void check(ToolFormat format, const std::vector<Case>& cases) {
    for (const Case& one : cases) {
        SCOPED_TRACE(one.output);
        EXPECT_EQ(whole_items(parse(format, one.output)), one.items);
    }
}

void check_is_text(ToolFormat format, const std::vector<std::string_view>& outputs) {
    for (const std::string_view output : outputs) {
        SCOPED_TRACE(output);
        const std::vector<TurnItem> items = whole_items(parse(format, output));
        EXPECT_EQ(items, output.empty() ? std::vector<TurnItem>{} : std::vector{text(output)});
    }
}

constexpr auto kHermes = ToolFormat::kHermes;
constexpr auto kLlama3 = ToolFormat::kLlama3;
constexpr auto kMistral = ToolFormat::kMistral;
constexpr auto kQwen3Coder = ToolFormat::kQwen3Coder;

TEST(ToolCalls, HermesCallsStandBetweenMarkers) {
    check(
        kHermes,
        {{"<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\", \"days\": "
          "2}}\n</tool_call>",
          {kWeather}},
         {"Let me look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\", "
          "\"days\": 2}}\n</tool_call>\n<tool_call>{\"name\": \"time\"}</tool_call>\n",
          {text("Let me look.\n"), kWeather, kTime}},
         {"\n\n<tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call> and then",
          {kTime, text(" and then")}},
         {R"(a <tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call> b)"
          R"(<tool_call>{"name": "h"}</tool_call>)",
          {text("a "), call("f", "{}"), call("g", "{}"), text(" b"), call("h", "{}")}}}
    );
}

TEST(ToolCalls, LlamasCallsAreAllOfTheOutput) {
    check(
        kLlama3,
        {{R"({"name": "time", "parameters": {}})", {kTime}},
         {R"(<|python_tag|>{"name": "weather", "parameters": {"city": "Paris", "days": 2}}; )"
          R"({"name": "time", "parameters": {}})",
          {kWeather, kTime}},
         {R"(Well: <|python_tag|>{"name": "time"})", {text("Well: "), kTime}},
         {R"({"name": "time"} That is all. {"name": "time"})",
          {kTime, text(R"( That is all. {"name": "time"})")}}}
    );
}

TEST(ToolCalls, MistralsCallsAreAListOrHaveTheirNameInFront) {
    check(
        kMistral,
        {{R"([TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris", "days": 2}}, )"
          R"({"name": "time", "arguments": {}}])",
          {kWeather, kTime}},
         {R"(Yes.[TOOL_CALLS]weather{"city": "Paris", "days": 2}[TOOL_CALLS]time[ARGS]{})",
          {text("Yes."), kWeather, kTime}}}
    );
}

TEST(ToolCalls, Qwen3CodersValuesHaveTheTypesOfTheirSchema) {
    check(
        kQwen3Coder,
        {{"I look.\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n"
          "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
          {text("I look.\n"), kWeather}},
         {"<tool_call>\n<function=time>\n</function>\n</tool_call>\n<tool_call>\n<function=time>\n"
          "<parameter=zone>\n+1\n</parameter>\n</function>\n</tool_call>",
          {kTime, call("time", R"({"zone":"+1"})")}},
         {"<tool_call>\n<function=weather>\n<parameter=city>\nline \"one\"\n\n<b> </param\\\n\n"
          "</parameter>\n<parameter=wind>\nTrue\n</parameter>\n<parameter=near>\n[1, {\"a\": 2.0}]"
          "\n</parameter>\n<parameter=note>\nnull\n</parameter>\n<parameter=other>\n5\n</parameter>"
          "\n</function>\n</tool_call>",
          {call(
              "weather",
              R"({"city":"line \"one\"\n\n<b> </param\\\n","wind":true,"near":[1,{"a":2.0}],)"
              R"("note":null,"other":"5"})"
          )}},
         {"<tool_call><function=weather><parameter=city>null</parameter><parameter=days>soon"
          "</parameter><parameter=unit>C</parameter><parameter=at>{'a': (</parameter></function>"
          "</tool_call>",
          {call("weather", R"({"city":"null","days":"soon","unit":"C","at":"{'a': ("})")}},
         {"<tool_call>\n<function=unknown>\n<parameter=x>\n5\n</parameter>\n</function>\n"
          "</tool_call>",
          {call("unknown", R"({"x":"5"})")}}}
    );
}

// The model often leaves out the first marker.
TEST(ToolCalls, Qwen3CodersFirstMarkerMayBeMissing) {
    check(
        kQwen3Coder,
        {{"So:\n<function=time>\n</function>\n</tool_call>", {text("So:\n"), kTime}},
         {"<function=time></function>\n\n<function=time></function> done",
          {kTime, kTime, text(" done")}},
         {"<function=time>\n</function>", {kTime}}}
    );
}

TEST(ToolCalls, GlmsKeysAndValuesArePairs) {
    for (const auto format : {ToolFormat::kGlm45, ToolFormat::kGlm47}) {
        check(
            format,
            {{"Yes.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
              "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
              {text("Yes.\n"), kWeather}},
             {"<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days"
              "</arg_key><arg_value>2</arg_value></tool_call><tool_call>time</tool_call>",
              {kWeather, kTime}},
             {"<tool_call>other<arg_key>a</arg_key><arg_value>[1, 2]</arg_value><arg_key>b"
              "</arg_key><arg_value>so\n</arg_value></tool_call>",
              {call("other", R"({"a":[1,2],"b":"so\n"})")}},
             {"<tool_call>weather<arg_key>city</arg_key><arg_value>5</arg_value></tool_call>",
              {call("weather", R"({"city":"5"})")}}}
        );
    }
}

TEST(ToolCalls, KimisIdIsTheOneThatTheModelWrote) {
    check(
        ToolFormat::kKimiK2,
        {{"Ok<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
          "<|tool_call_argument_begin|>{\"city\": \"Paris\", \"days\": 2}<|tool_call_end|>"
          "<|tool_call_begin|>functions.time:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
          "<|tool_calls_section_end|>",
          {text("Ok"),
           call("weather", kWeather.call.arguments, "functions.weather:0"),
           call("time", "{}", "functions.time:1")}},
         {"<|tool_calls_section_begin|>\n<|tool_call_begin|> functions.a.b:12 "
          "<|tool_call_argument_begin|> {} <|tool_call_end|>\n<|tool_calls_section_end|>\n bye",
          {call("a.b", "{}", "functions.a.b:12"), text("\n bye")}}}
    );
}

TEST(ToolCalls, DeepseeksCallsAreInASection) {
    check(
        ToolFormat::kDeepseekV3,
        {{"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
          "{\"city\": \"Paris\", \"days\": "
          "2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function"
          "<｜tool▁sep｜>time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
          {kWeather, kTime}}}
    );
    check(
        ToolFormat::kDeepseekV31,
        {{"Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": "
          "\"Paris\", "
          "\"days\": 2}<｜tool▁call▁end｜><｜tool▁call▁begin｜>time<｜tool▁sep｜>{}"
          "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
          {text("Hm."), kWeather, kTime}}}
    );
}

TEST(ToolCalls, PythonsCallsAreAListOfThem) {
    check(
        ToolFormat::kPythonic,
        {{"[weather(city='Paris', days=2), time()]", {kWeather, kTime}},
         {"<|python_start|>[time( )]<|python_end|>", {kTime}},
         {" [a.b(x = -1.5, y=[None, True,], z={'k': \"it's\", \"l\": 'q\"\\n\\x41'},)] so",
          {call("a.b", R"({"x":-1.5,"y":[null,true],"z":{"k":"it's","l":"q\"\nA"}})"),
           text(" so")}}}
    );
}

TEST(ToolCalls, AMalformedCallStaysText) {
    check_is_text(
        kHermes,
        {"<tool_call>",
         "<tool_call></tool_call>",
         "<tool_call>{\"name\": \"time\"",
         "<tool_call>{\"name\": 5}</tool_call>",
         "<tool_call>[1]</tool_call>",
         "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
         "<tool_call>{\"name\": \"f\", \"arguments\": \"{nope\"}</tool_call>",
         "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": nope}}</tool_call> x",
         "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}} x</tool_call>",
         "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\\ud800\"}}</tool_call>",
         "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 01}}</tool_call>",
         "<tool_call>nonsense</tool_call> x",
         "\n <tool_call>{oops}",
         "a < b and <tool_cal",
         "</tool_call>",
         "  ",
         ""}
    );
    check_is_text(
        kLlama3,
        {"{\"answer\": 42}",
         "{\"name\": \"f\"",
         "{nope}",
         "<|python_tag|>",
         "<|python_tag|>print(1)",
         "It is {\"name\": \"f\"}",
         "<|python",
         "  "}
    );
    check_is_text(
        kMistral,
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
         "[TOOL"}
    );
}

TEST(ToolCalls, AMalformedCallBetweenTagsStaysText) {
    check_is_text(
        kQwen3Coder,
        {"<tool_call>",
         "<tool_call>\n<function=",
         "<tool_call>{\"name\": \"time\"}</tool_call>",
         "<function=a b>",
         "<function=time>\n<parameter=",
         "<function=time>\n<parameter=zone>\nhere</param",
         "<tool_call><function=time>oops</function></tool_call>",
         "<functional"}
    );
    check_is_text(
        ToolFormat::kGlm45,
        {"<tool_call>",
         "<tool_call></tool_call>",
         "<tool_call>a b</tool_call>",
         "<tool_call>time",
         "<tool_call>time\n<arg_key>a</arg_key>\n</tool_call>"}
    );
    check_is_text(
        ToolFormat::kKimiK2,
        {"<|tool_calls_section_begin|>",
         "<|tool_calls_section_begin|><|tool_calls_section_end|>",
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0",
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0"
         "<|tool_call_argument_begin|>[]<|tool_call_end|>",
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0"
         "<|tool_call_argument_begin|>{\"a\": 1"}
    );
    check_is_text(
        ToolFormat::kPythonic,
        {"[1] says so", "[link](http://a)", "[f(x)]", "[f(x=y)]", "[f(x=1", "f(x=1)", "[]", "["}
    );
}

TEST(ToolCalls, AMalformedCallHidesNoneThatFollows) {
    check(
        kHermes,
        {{"<tool_call>{oops}</tool_call><tool_call>{\"name\": \"time\"}</tool_call>",
          {text("<tool_call>{oops}</tool_call>"), kTime}}}
    );
    check(kMistral, {{"[TOOL_CALLS]?[TOOL_CALLS]time{}", {text("[TOOL_CALLS]?"), kTime}}});
    check(
        kQwen3Coder,
        {{"<tool_call>{}<tool_call><function=time></function></tool_call>",
          {text("<tool_call>{}"), kTime}}}
    );
}

TEST(ToolCalls, ALastCallMayLackItsClosingMarkers) {
    check(kHermes, {{"<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n", {kTime}}});
    check(kQwen3Coder, {{"<tool_call>\n<function=time>\n</function>\n", {kTime}}});
    check(
        ToolFormat::kDeepseekV31,
        {{"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>time<｜tool▁sep｜>{}", {kTime}}}
    );
}

TEST(ToolCalls, ArgumentsKeepTheirOrderAndMayBeAText) {
    check(
        kHermes,
        {{R"(<tool_call>{"name": "f", "arguments": {"z": "a\"}", "a": [1.5, null, {"b": "]"}]}}</tool_call>)",
          {call("f", R"({"z":"a\"}","a":[1.5,null,{"b":"]"}]})")}},
         {R"(<tool_call>{"arguments": {"a": 1}, "id": [2], "name": "f"}</tool_call>)",
          {call("f", R"({"a":1})")}},
         {"<tool_call>{\"name\": \"f\", \"arguments\": {\"wo\": \"Köln 中\"}}</tool_call>",
          {call("f", "{\"wo\":\"Köln 中\"}")}}}
    );
    check(
        kLlama3,
        {{R"({"name": "f", "parameters": "{\"x\": 1}"})", {call("f", R"({"x":1})")}},
         {R"({"name": "f", "parameters": {"q": "};{"}})", {call("f", R"({"q":"};{"})")}},
         {R"({"name": "f", "parameters": null})", {call("f", "{}")}}}
    );
}

// nlohmann::json writes the same value.
TEST(ToolCalls, ArgumentsAreWrittenAsJsonLibrariesWriteThem) {
    for (const std::string_view value :
         {R"("\u00e9\ud83d\ude00\/\b\f\n\r\t\u0001\u0022\\")",
          R"([ 1 , -0, 1.50, 1e3, 2.0, 12345678901234567890123, 0.1e-5, true, false, null ])",
          R"({ "a" : { } , "b" : [ [ ] , [ { "c" : "" } ] ] })",
          "\"ÿ中😀\x7f\""}) {
        const std::string output = R"(<tool_call>{"name": "f", "arguments": {"x": )" +
                                   std::string(value) + "}}</tool_call>";
        const auto expected = nlohmann::ordered_json::parse(R"({"x": )" + std::string(value) + "}");
        EXPECT_EQ(whole_items(parse(kHermes, output)), std::vector{call("f", expected.dump())});
    }
}

TEST(ToolCalls, ACallIsStreamedWithItsNameFirst) {
    ToolCallParser parser(kHermes);
    const auto kinds = [&](std::string_view piece) {
        std::vector<std::pair<Kind, std::string>> told;
        const TurnPieces pieces = parser.append(piece);
        for (const TurnPiece& one : pieces.list()) told.emplace_back(one.kind, one.text);
        return told;
    };
    using Told = std::vector<std::pair<Kind, std::string>>;
    EXPECT_EQ(kinds("Hello"), (Told{{Kind::kText, "Hello"}}));
    EXPECT_EQ(kinds(" <tool"), (Told{{Kind::kText, " "}}));
    EXPECT_EQ(kinds("box>"), (Told{{Kind::kText, "<toolbox>"}}));
    EXPECT_EQ(kinds("<tool_call>{\"name\": \"weather\""), Told{});
    EXPECT_EQ(
        kinds(", \"arguments\": {\"city\": \"Pa"),
        (Told{{Kind::kCall, "weather"}, {Kind::kArguments, "{\"city\":\"Pa"}})
    );
    EXPECT_EQ(kinds("ris"), (Told{{Kind::kArguments, "ris"}}));
    EXPECT_EQ(kinds("\"}}"), (Told{{Kind::kArguments, "\"}"}}));
    EXPECT_EQ(kinds("</tool_call>"), (Told{{Kind::kArguments, ""}, {Kind::kCallEnd, ""}}));

    ToolCallParser coder(kQwen3Coder, kSchemas);
    std::string told;
    for (const std::string_view piece :
         {"<tool_call>\n<function=weather>", "\n<parameter=city>\nPa", "ris\n</para", "meter>"}) {
        const TurnPieces pieces = coder.append(piece);
        for (const TurnPiece& one : pieces.list()) told += one.text + "|";
    }
    EXPECT_EQ(told, "weather|{\"city\":\"Pa|ris|\"|");
}

TEST(ToolCalls, ACallThatIsCutOffIsBrokenInAStreamAndTextInAWholeAnswer) {
    for (const auto& [format, output] :
         {std::pair{kHermes, R"(<tool_call>{"name": "f", "arguments": {"a": "b)"},
          {kLlama3, R"({"name": "f", "parameters": {"a": "b)"},
          {kMistral, R"([TOOL_CALLS]f{"a": "b)"},
          {kQwen3Coder, "<function=f><parameter=a>b"}}) {
        const TurnPieces pieces = parse(format, output);
        ASSERT_EQ(pieces.list().size(), 3);
        EXPECT_EQ(pieces.list()[0].text, "f");
        EXPECT_EQ(pieces.list()[1].text, "{\"a\":\"b");
        EXPECT_EQ(pieces.list()[2].kind, Kind::kCallBroken);
        EXPECT_EQ(whole_items(pieces), std::vector{text(output)});
    }
}

TEST(ToolCalls, JsonThatIsNestedTooDeepIsText) {
    const std::string deep = R"({"name": "f", "parameters": )" + std::string(10'000, '[');
    EXPECT_EQ(whole_items(in_pieces(kLlama3, deep, {})), std::vector{text(deep)});
    const std::string closed = R"({"name": "f", "parameters": {"a": )" + std::string(10'000, '[') +
                               std::string(10'000, ']') + "}}";
    EXPECT_EQ(whole_items(in_pieces(kLlama3, closed, {})), std::vector{text(closed)});
}

TEST(ToolCalls, TimeIsLinear) {
    // Quadratic time would take minutes.
    for (const auto& [format, opening, unit] :
         {std::tuple{kHermes, "<tool_call>", "x"},
          {kHermes, "", "<tool_call>{\"\":\""},
          {kHermes, "<tool_call>{\"arguments\":{\"", "<tool_call>"},
          {kLlama3, "{\"a\":\"", "x"},
          {kMistral, "[TOOL_CALLS][\"", "x"},
          {kQwen3Coder, "<function=", "<function="},
          {kQwen3Coder, "<function=f><parameter=a>", "</parameter"},
          {ToolFormat::kGlm45, "<tool_call>f<arg_key>a</arg_key><arg_value>[\"", "</arg_value>"},
          {ToolFormat::kGlm45, "<tool_call>f", "<arg_key>a</arg_key><arg_value>[\",\"</arg_value>"},
          {ToolFormat::kGlm45, "", "<tool_call>a"},
          {ToolFormat::kKimiK2, "", "<|tool_calls_section_begin|><|tool_call_begin|>"},
          {ToolFormat::kPythonic, "[f(a='", "<|python_start|>"}}) {
        ToolCallParser parser(format);
        TurnPieces pieces = parser.append(opening);
        constexpr std::size_t kUnits = 50'000;
        for (std::size_t i = 0; i < kUnits; ++i) pieces.append(parser.append(unit));
        pieces.append(parser.finish());
        std::string all;
        for (const TurnItem& item : whole_items(pieces)) all += item.text;
        EXPECT_EQ(
            all.size(), std::string_view(opening).size() + kUnits * std::string_view(unit).size()
        );
    }
}

TEST(ToolCalls, FormatsHaveTheEnginesNames) {
    EXPECT_EQ(tool_format_named("qwen25"), kHermes);
    EXPECT_EQ(tool_format_named("llama3_json"), kLlama3);
    EXPECT_EQ(tool_format_named("deepseek_v31"), tool_format_named("deepseekv31"));
    EXPECT_FALSE(tool_format_named("klingon"));
    EXPECT_FALSE(tool_format_named(""));
    for (const ToolFormatName& one : kToolFormats) EXPECT_EQ(row_of(one.format).format, one.format);
}

TEST(ToolCalls, ATemplateShowsItsFormat) {
    EXPECT_EQ(tool_format_in(R"(<tool_call>\n{\"name\": <function-name>)"), kHermes);
    EXPECT_EQ(tool_format_in("<tool_call>\n<function=example>"), kQwen3Coder);
    EXPECT_EQ(tool_format_in("<arg_key>{{ k }}</arg_key>\n<arg_value>"), ToolFormat::kGlm45);
    EXPECT_EQ(tool_format_in("<arg_key>{{ k }}</arg_key><arg_value>"), ToolFormat::kGlm47);
    EXPECT_EQ(tool_format_in("<｜tool▁calls▁begin｜>\n```json"), ToolFormat::kDeepseekV3);
    EXPECT_EQ(tool_format_in("[TOOL_CALLS]"), kMistral);
    EXPECT_FALSE(tool_format_in("{{ messages }}"));
    EXPECT_FALSE(tool_format_in(""));
}

}  // namespace
}  // namespace pitstop::http
