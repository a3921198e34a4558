#include "http_proc/format/ordered_json.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace pitstop::http {
namespace {

using OrderedJson = nlohmann::ordered_json;

TEST(OrderedJson, IsWhatNlohmannsParserReads) {
    for (const char* text :
         {R"({"b": 1, "a": [true, null, -2, 1.5, "x\u00e9"], "c": {"z": {}, "y": []}})",
          "[]",
          "3",
          R"("text")",
          "[[1], [[2]], {}]",
          "18446744073709551615"}) {
        const auto json = parse_ordered_json(text);
        ASSERT_TRUE(json.has_value()) << text;
        EXPECT_EQ(json->dump(), OrderedJson::parse(text).dump()) << text;
    }
}

TEST(OrderedJson, TheLastOfEqualNamesCountsAtTheFirstOnesPlace) {
    const auto json = parse_ordered_json(R"({"a": 1, "b": {"x": 2}, "a": {"y": 3}})");
    ASSERT_TRUE(json.has_value());
    EXPECT_EQ(json->dump(), R"({"a":{"y":3},"b":{"x":2}})");
}

TEST(OrderedJson, WhatIsNoJsonOrTooDeepIsRefused) {
    const std::string deep = std::string(65, '[') + std::string(65, ']');
    for (const std::string& text : {std::string("{"), std::string("{} x"), std::string(), deep})
        EXPECT_FALSE(parse_ordered_json(text).has_value()) << text;
    EXPECT_TRUE(parse_ordered_json(deep.substr(1, 128)).has_value());
}

// nlohmann's parser compares each member with all members before it: 2 * 10^10 times.
TEST(OrderedJson, ManyMembersTakeTimeInProportion) {
    std::string text = "{";
    constexpr int kNum = 200'000;
    for (int i = 0; i < kNum; ++i) text += fmt::format("{}\"key{}\":{}", i == 0 ? "" : ",", i, i);
    const auto json = parse_ordered_json(text + "}");
    ASSERT_TRUE(json.has_value());
    EXPECT_EQ(json->size(), kNum);
}

}  // namespace
}  // namespace pitstop::http
