// Tests which fields of structured output become grammars, and what becomes of a turn's grammar.
#include "http_proc/format/grammar_fields.h"

#include "http_proc/format/turn_grammar.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace pitstop::http {
namespace {

using Json = nlohmann::json;

Result<messages::SamplingParams> structured_outputs(const std::string& value) {
    const std::string body = R"({"structured_outputs": )" + value + "}";
    FieldReader fields(parse_json_object(body));
    messages::SamplingParams params;
    read_structured_outputs(fields, body, "", params);
    if (fields.error()) return *fields.error();
    return params;
}

// The empty schema means any JSON, and false means none.
TEST(GrammarFields, EverySchemaOfStructuredOutputsIsTaken) {
    for (const std::string schema : {"{}", "true", "false", R"({"type": "null"})"}) {
        const auto params = structured_outputs(R"({"json": )" + schema + "}");
        ASSERT_TRUE(params) << params.error().message;
        EXPECT_EQ(params->json_schema, Json::parse(schema).dump()) << schema;
    }
}

TEST(GrammarFields, AnEmptyGrammarOfStructuredOutputsIsRefused) {
    for (const char* outputs :
         {R"({"choice": []})",
          R"({"choice": false})",
          R"({"regex": ""})",
          R"({"grammar": ""})",
          R"({"structural_tag": {}})"}) {
        const auto params = structured_outputs(outputs);
        ASSERT_FALSE(params) << outputs;
        EXPECT_NE(params.error().message.find("structured_outputs"), std::string::npos)
            << params.error().message;
    }
}

TEST(GrammarFields, WhatStructuredOutputsLeaveOutIsNotAskedFor) {
    for (const char* outputs :
         {"{}", R"({"json": null, "choice": null, "json_object": false, "_backend": ""})"}) {
        const auto params = structured_outputs(outputs);
        ASSERT_TRUE(params) << params.error().message;
        EXPECT_FALSE(has_grammar(*params));
    }
}

TEST(TurnGrammar, AStructuralTagOfEitherFormBeginsAfterTheThinking) {
    const std::string tags =
        R"([{"begin": "<f>", "content": {"type": "json_schema", "json_schema": {"type": "null"}},
             "end": "</f>"}])";
    const Json expected{
        {"type", "triggered_tags"},
        {"triggers", Json::array({"<f>"})},
        {"tags", Json::parse(tags)}};
    const std::string present = R"({"type": "structural_tag", "format": )" + expected.dump() + "}";
    const std::string earlier = R"({"type": "structural_tag", "triggers": ["<f>"], "structures":
            [{"begin": "<f>", "schema": {"type": "null"}, "end": "</f>"}]})";
    const TurnGrammar turn{
        .thinking = ThinkingFormat{.open = "<t>", .close = "</t>"},
        .start = ThinkingParser::Start::kInside};
    for (const std::string& tag : {present, earlier}) {
        messages::SamplingParams params;
        params.structural_tag = tag;
        ASSERT_TRUE(set_turn_grammar(turn, params));
        const Json format = Json::parse(params.structural_tag)["format"];
        ASSERT_EQ(format["type"], "sequence") << params.structural_tag;
        EXPECT_EQ(format["elements"][0]["end"], Json::array({"</t>"}));
        EXPECT_EQ(format["elements"][1], expected);
    }
}

}  // namespace
}  // namespace pitstop::http
