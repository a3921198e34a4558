// Tests reading and writing JSON.
#include "http_proc/format/json_body.h"
#include "http_proc/format/json_writer.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>
#include <string>

namespace pitstop::http {
namespace {

using nlohmann::json;

TEST(JsonBody, AnEmptyBodyIsAnEmptyObject) {
    for (const char* body : {"", "  \r\n", "{}", "null"}) {
        const auto parsed = parse_json_object(body);
        ASSERT_TRUE(parsed) << body;
        EXPECT_EQ(*parsed, json::object());
    }
}

TEST(JsonBody, DepthIsLimitedAndBracketsInStringsDoNotCount) {
    const auto nested = [](int depth) {
        return std::string(static_cast<std::size_t>(depth), '[') +
               std::string(static_cast<std::size_t>(depth), ']');
    };
    EXPECT_TRUE(parse_json(nested(kJsonDepthMax)));
    EXPECT_FALSE(parse_json(nested(kJsonDepthMax + 1)));
    EXPECT_FALSE(parse_json(std::string(1'000'000, '[')));
    EXPECT_TRUE(parse_json("\"" + std::string(1000, '[') + "\\\"" + std::string(1000, '[') + "\""));
}

TEST(JsonBody, WhatIsNotJsonOrNotUtf8IsRefusedWithThePlace) {
    for (const char* body : {"{", "{\"a\":}", "{} {}", "nan", "\"\xff\"", "\"\\ud800\"", "[1e400]"})
        EXPECT_FALSE(parse_json(body)) << body;
    EXPECT_EQ(parse_json("{bad").error().message, "the body is not JSON at byte 2");
    EXPECT_FALSE(parse_json_object("[1]"));
}

TEST(FieldReader, TakesWhatTheEnginesTake) {
    const json object = json::parse(R"({"a": "60000", "b": 3.0, "c": "0.5", "d": 1, "e": "true",
        "f": "x", "g": [1, 2.0], "n": [1, null, 2], "h": null, "i": 18446744073709551615})");
    FieldReader fields(object);
    std::int64_t a = 0;
    std::int64_t b = 0;
    std::int64_t h = 7;
    double c = 0;
    bool d = false;
    bool e = false;
    std::vector<std::string> f;
    std::vector<TokenId> g;
    std::vector<TokenId> n;
    std::optional<std::uint64_t> i;
    fields.read("a", a);
    fields.read("b", b);
    fields.read("c", c);
    fields.read("d", d);
    fields.read("e", e);
    fields.read("f", f);
    fields.read("g", g);
    fields.read_without_nulls("n", n);
    fields.read("h", h);
    fields.read("i", i);
    fields.read("absent", h);
    ASSERT_FALSE(fields.error()) << fields.error()->message;
    EXPECT_EQ(a, 60000);
    EXPECT_EQ(b, 3);
    EXPECT_EQ(c, 0.5);
    EXPECT_TRUE(d && e);
    EXPECT_EQ(f, std::vector<std::string>{"x"});
    EXPECT_EQ(g, (std::vector{TokenId{1}, TokenId{2}}));
    EXPECT_EQ(n, g);
    EXPECT_EQ(h, 7);
    EXPECT_EQ(i, std::numeric_limits<std::uint64_t>::max());
}

TEST(FieldReader, RefusesATokenListWithANullByName) {
    const json object = json::parse(R"({"ids": [1, null, 2], "nothing": null})");
    FieldReader fields(object, "params");
    std::vector<TokenId> ids{TokenId{7}};
    fields.read("nothing", ids);
    EXPECT_FALSE(fields.error());
    fields.read("ids", ids);
    EXPECT_EQ(ids, std::vector{TokenId{7}});
    ASSERT_TRUE(fields.error());
    EXPECT_EQ(fields.error()->message, "params.ids is [1,null,2]; accepted is a list of token ids");
}

TEST(FieldReader, NamesTheFirstProblemAndWhatIsAccepted) {
    const json object = json::parse(R"({"n": 1.5, "s": 3})");
    FieldReader fields(object, "params");
    std::int64_t n = 7;
    std::string s = "kept";
    fields.read("n", n);
    fields.read("s", s);
    ASSERT_TRUE(fields.error());
    EXPECT_EQ(
        fields.error()->message, "params.n is 1.5; accepted is an integer from -2^63 to 2^63 - 1"
    );
    EXPECT_EQ(n, 7);
    EXPECT_EQ(s, "kept");
}

TEST(JsonWriter, WritesWhatAParserReadsBack) {
    JsonWriter writer;
    writer.begin_object().key("a").begin_array().integer(-5).integer(7).null().boolean(true);
    writer.begin_object().end_object().end_array().key("s").string("q\"\\\n\t\x01\x7f é 🏎");
    writer.key("raw").raw("[1,2]").key("x").number(0.1).end_object();
    const json read = json::parse(writer.text());
    EXPECT_EQ(read["a"], json::parse("[-5, 7, null, true, {}]"));
    EXPECT_EQ(read["s"], "q\"\\\n\t\x01\x7f é 🏎");
    EXPECT_EQ(read["raw"], json::parse("[1, 2]"));
    EXPECT_EQ(read["x"], 0.1);
}

TEST(JsonWriter, ALogprobReadsBackToTheSameFloatAndIsNeverAnInteger) {
    for (const float value : {0.F, -1.F, -0.17088628F, -1e-30F, -123456.79F, -3.4e38F}) {
        std::string text;
        append_json_logprob(text, value);
        EXPECT_TRUE(json::parse(text).is_number_float()) << text;
        EXPECT_EQ(json::parse(text).get<float>(), value) << text;
    }
    std::string text;
    append_json_logprob(text, -std::numeric_limits<float>::infinity());
    EXPECT_EQ(text, "-9999.0");
}

}  // namespace
}  // namespace pitstop::http
