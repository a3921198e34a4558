// Tests every component of tokenizer.json by itself, with a made-up vocabulary: the reference
// implementation wrote the expected results (make_component_cases.py).
#include "tests/source_dir.h"
#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>

namespace pitstop::text {
namespace {

using nlohmann::json;

std::vector<TokenId> ids_of(const json& array) {
    std::vector<TokenId> ids;
    for (const json& id : array) ids.push_back(TokenId{id.get<std::int32_t>()});
    return ids;
}

void expect_as_reference(const Tokenizer& tokenizer, const json& expected) {
    const auto text = expected["text"].get<std::string>();
    SCOPED_TRACE(expected["text"].dump());
    const auto ids = tokenizer.encode(text, AddSpecial::kNo);
    ASSERT_TRUE(ids) << ids.error().message;
    ASSERT_EQ(*ids, ids_of(expected["ids"]));
    if (expected.contains("ids_special")) {
        const auto special = tokenizer.encode(text, AddSpecial::kYes);
        ASSERT_TRUE(special) << special.error().message;
        EXPECT_EQ(*special, ids_of(expected["ids_special"]));
    }
    for (const char* decoded : {"decoded", "decoded_none"}) {
        if (!expected.contains(decoded)) continue;
        const auto back = tokenizer.decode(*ids, SkipSpecial::kNo);
        ASSERT_TRUE(back) << back.error().message;
        EXPECT_EQ(*back, expected[decoded].get<std::string>());
    }
}

TEST(Components, DoWhatTheReferenceDoes) {
    std::ifstream lines(source_dir() + "/tests/data/tokenizers/component_cases.jsonl");
    std::vector<json> models;
    int num_cases = 0;
    for (std::string line; std::getline(lines, line);) {
        json entry = json::parse(line);
        if (entry.contains("model")) {
            models.push_back(std::move(entry["model"]));
            continue;
        }
        json& file = entry["file"];
        const json model = models.at(file["model"].get<std::size_t>());
        file["model"] = "...";
        SCOPED_TRACE(file.dump());
        file["model"] = model;
        const auto tokenizer = Tokenizer::parse(file.dump());
        ASSERT_TRUE(tokenizer) << tokenizer.error().message;
        for (const json& expected : entry["texts"]) expect_as_reference(**tokenizer, expected);
        ++num_cases;
    }
    EXPECT_GE(num_cases, 150);
}

}  // namespace
}  // namespace pitstop::text
