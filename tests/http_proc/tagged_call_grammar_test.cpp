#include "http_proc/format/tagged_call_grammar.h"

#include "http_proc/format/tool_schemas.h"
#include "messages/sampling.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace pitstop::http {
namespace {

using OrderedJson = nlohmann::ordered_json;

Result<OrderedJson> tagged(const std::string& schema) {
    return tagged_arguments(OrderedJson::parse(schema));
}

// `num` references to a definition, as anyOf has them.
std::string references(const std::string& name, int num) {
    std::string all;
    for (int i = 0; i < num; ++i)
        all += fmt::format(R"({}{{"$ref": "#/$defs/{}"}})", i == 0 ? "" : ", ", name);
    return "[" + all + "]";
}

TEST(TaggedCallGrammar, HasAPartForEachParameterInTheSchemasOrder) {
    const auto form = tagged(
        R"({"properties": {"to": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["days"]})"
    );
    ASSERT_TRUE(form.has_value()) << form.error().message;
    const OrderedJson& parts = (*form)["elements"];
    ASSERT_EQ(parts.size(), 2);
    EXPECT_EQ(parts[0]["type"], "optional");
    EXPECT_EQ(parts[0]["content"]["begin"], "\n<parameter=to>\n");
    EXPECT_EQ(parts[1]["content"]["type"], "json_schema");
}

TEST(TaggedCallGrammar, ADefinitionThatContainsItselfIsRefused) {
    for (const char* alternatives :
         {R"([{"type": "string"}, {"$ref": "#/$defs/A"}])", R"([{"$ref": "#/$defs/A"}])"}) {
        const auto form = tagged(fmt::format(
            R"({{"properties": {{"a": {{"$ref": "#/$defs/A"}}}}, "$defs": {{"A": {{"anyOf": {}}}}}}})",
            alternatives
        ));
        ASSERT_FALSE(form.has_value());
        EXPECT_NE(form.error().message.find("parameter 'a'"), std::string::npos);
    }
}

TEST(TaggedCallGrammar, ReferencesThatMultiplyAreRefused) {
    const auto form = tagged(fmt::format(
        R"({{"properties": {{"a": {{"anyOf": {}}}}}, "$defs": {{"A": {{"anyOf": {}}}, "B": {{"anyOf": {}}}, "C": {{"type": "string"}}}}}})",
        references("A", 1000),
        references("B", 1000),
        references("C", 1000)
    ));
    ASSERT_FALSE(form.has_value());
    EXPECT_NE(form.error().message.find("parameter 'a'"), std::string::npos);
}

TEST(TaggedCallGrammar, CopiesOfDefinitionsAreBounded) {
    std::string properties;
    for (int i = 0; i < 9; ++i)
        properties += fmt::format(R"({}"p{}": {{"type": "object"}})", i == 0 ? "" : ", ", i);
    const std::string filler(messages::kGrammarBytesMax / 8, 'x');
    const auto form = tagged(fmt::format(
        R"({{"properties": {{{}}}, "$defs": {{"A": {{"const": "{}"}}}}}})", properties, filler
    ));
    ASSERT_FALSE(form.has_value());
    EXPECT_NE(form.error().message.find("$defs is too large"), std::string::npos);
}

TEST(TaggedCallGrammar, MoreTypesThanJsonHasAreRefused) {
    const auto form = tagged(
        R"({"properties": {"a": {"type": ["string", "null", "string", "null", "string", "null",
            "string", "null"]}}})"
    );
    ASSERT_FALSE(form.has_value());
}

TEST(TaggedCallGrammar, ARequiredNameThatIsNoPropertyIsRefused) {
    EXPECT_FALSE(tagged(R"({"properties": {}, "required": ["a"]})").has_value());
    EXPECT_FALSE(tagged(R"({"properties": {"a": {}}, "required": [1]})").has_value());
    EXPECT_TRUE(tagged(R"({"properties": {"a": {}}, "required": ["a", "a"]})").has_value());
}

TEST(TaggedCallGrammar, WhatCannotBeWrittenIsRefused) {
    EXPECT_FALSE(tagged(R"({"properties": [1]})").has_value());
    EXPECT_FALSE(tagged(R"({"properties": {"a": {"enum": ["x</parameter>y"]}}})").has_value());
    EXPECT_FALSE(tagged(R"({"properties": {"a": {"const": "</parameter>"}}})").has_value());
    EXPECT_TRUE(tagged(R"({"properties": {"a": {"enum": ["x", "y"]}}})").has_value());
}

TEST(ToolSchemas, ReferencesThatMultiplyHaveNoKnownType) {
    const auto tools = nlohmann::json::parse(fmt::format(
        R"([{{"name": "f", "parameters": {{"properties": {{"a": {{"anyOf": {}}}}}, "$defs": {{"A": {{"anyOf": {}}}, "B": {{"type": "string"}}}}}}}}])",
        references("A", 1000),
        references("B", 1000)
    ));
    const ToolSchemas schemas(tools);
    EXPECT_EQ(schemas.types_of("f", "a"), nullptr);
}

}  // namespace
}  // namespace pitstop::http
