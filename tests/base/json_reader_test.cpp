#include "base/json_reader.h"

#include <gtest/gtest.h>

namespace pitstop {
namespace {

using Json = nlohmann::json;

Result<Json> read(std::string_view text, std::size_t depth_max = 8, std::size_t values_max = 100) {
    return read_json_tree(text, "file: ", {.depth_max = depth_max}, values_max);
}

TEST(JsonReader, ReadsWhatTheLibraryReads) {
    for (const std::string_view text :
         {R"({})",
          R"({"a": 1, "b": [-1, 2.5, 18446744073709551615, true, null, "x\u00e9[{"]})",
          R"({"a": {"b": [[], {}, [{"c": {}}]]}, "d": "e"})",
          R"({"twice": [1], "other": 0, "twice": {"last": 1}})"}) {
        const Result<Json> json = read(text);
        ASSERT_TRUE(json.has_value()) << json.error().message;
        EXPECT_EQ(*json, Json::parse(text));
    }
}

TEST(JsonReader, RefusesWhatIsNoObject) {
    for (const std::string_view text : {"[]", "null", "1", "\"x\"", "[{}]"}) {
        const Result<Json> json = read(text);
        ASSERT_FALSE(json.has_value()) << text;
        EXPECT_EQ(json.error().code, ErrorCode::kMalformed);
        EXPECT_EQ(json.error().message, "file: not a JSON object");
    }
}

TEST(JsonReader, SaysAtWhichByteItIsNotJsonAndQuotesNothing) {
    const std::vector<std::pair<std::string, std::string>> texts{
        {"", "file: not JSON at byte 1"},
        {R"({"a": 1} x)", "file: not JSON at byte 10"},
        {R"({"a": )", "file: not JSON at byte 7"},
        {R"({"a": ")" + std::string(100'000, 'x') + "\xff", "file: not JSON at byte 100008"},
        {R"({"a": 1e999})", "file: a number is out of range at byte 11"},
    };
    for (const auto& [text, message] : texts) {
        const Result<Json> json = read(text);
        ASSERT_FALSE(json.has_value());
        EXPECT_EQ(json.error().code, ErrorCode::kMalformed);
        EXPECT_EQ(json.error().message, message);
    }
}

TEST(JsonReader, ReadsAsDeepAsItMayAndNotOneLevelMore) {
    EXPECT_TRUE(read(R"({"a": [[1]]})", 3).has_value());
    for (const std::string_view text : {R"({"a": [[[]]]})", R"({"a": [{"b": {}}]})"}) {
        const Result<Json> json = read(text, 3);
        ASSERT_FALSE(json.has_value());
        EXPECT_EQ(json.error().code, ErrorCode::kMalformed);
        EXPECT_EQ(json.error().message, "file: nested deeper than 3 levels");
    }
    EXPECT_FALSE(read(R"({"a": )" + std::string(10 << 20, '[')).has_value());
}

TEST(JsonReader, KeepsAsManyValuesAsItMayAndNotOneMore) {
    for (const std::string_view text :
         {R"({"a": [1, 2]})", R"({"a": 1, "b": 2, "c": 3})", R"({"a": [[], {}]})"}) {
        EXPECT_TRUE(read(text, 8, 3).has_value());
        const Result<Json> json = read(text, 8, 2);
        ASSERT_FALSE(json.has_value());
        EXPECT_EQ(json.error().code, ErrorCode::kTooLarge);
        EXPECT_EQ(json.error().message, "file: more than 2 values");
    }
}

TEST(JsonReader, EndsWhereItIsInterrupted) {
    int num_asked = 0;
    const Interrupt interrupt = [&]() -> std::optional<Error> {
        if (++num_asked < 3) return std::nullopt;
        return make_error(ErrorCode::kAborted, "enough");
    };
    const Result<Json> json =
        read_json_tree(R"({"a": [1, 2, 3, 4]})", "file: ", {.interrupt = interrupt}, 100);
    ASSERT_FALSE(json.has_value());
    EXPECT_EQ(json.error().code, ErrorCode::kAborted);
    EXPECT_EQ(json.error().message, "enough");
    EXPECT_EQ(num_asked, 3);
}

}  // namespace
}  // namespace pitstop
