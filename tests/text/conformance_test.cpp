// Tests all texts and id sequences that the reference implementation was given, for every
// tokenizer: the same ids, the same text.
#include "tests/text/tokenizer_dirs.h"
#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>

namespace pitstop::text {
namespace {

using nlohmann::json;

std::vector<json> read_lines(const std::filesystem::path& path) {
    std::vector<json> lines;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
    return lines;
}

std::vector<TokenId> ids_of(const json& array) {
    std::vector<TokenId> ids;
    for (const json& id : array) ids.push_back(TokenId{id.get<std::int32_t>()});
    return ids;
}

class Conformance : public testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        auto loaded = Tokenizer::load(tokenizer_dir(GetParam()));
        ASSERT_TRUE(loaded) << loaded.error().message;
        tokenizer_ = *std::move(loaded);
    }
    std::string decode(const std::vector<TokenId>& ids, SkipSpecial skip) const {
        const auto text = tokenizer_->decode(ids, skip);
        return text ? *text : "error: " + text.error().message;
    }
    std::vector<json> lines(const char* file) const {
        std::vector<json> all = read_lines(tokenizer_dir(GetParam()) / file);
        EXPECT_FALSE(all.empty()) << file;
        return all;
    }

    std::shared_ptr<const Tokenizer> tokenizer_{};
};

TEST_P(Conformance, EncodesAsTheReference) {
    for (const json& line : lines("expected.jsonl")) {
        const auto text = line["text"].get<std::string>();
        SCOPED_TRACE(line["text"].dump());
        const auto ids = tokenizer_->encode(text, AddSpecial::kNo);
        ASSERT_TRUE(ids) << ids.error().message;
        EXPECT_EQ(*ids, ids_of(line["ids"]));
        const auto special = tokenizer_->encode(text, AddSpecial::kYes);
        ASSERT_TRUE(special) << special.error().message;
        EXPECT_EQ(*special, ids_of(line["ids_special"]));
    }
}

TEST_P(Conformance, DecodesAsTheReference) {
    for (const json& line : lines("expected.jsonl")) {
        SCOPED_TRACE(line["text"].dump());
        const std::vector<TokenId> special = ids_of(line["ids_special"]);
        EXPECT_EQ(
            decode(ids_of(line["ids"]), SkipSpecial::kNo), line["decoded"].get<std::string>()
        );
        EXPECT_EQ(decode(special, SkipSpecial::kNo), line["decoded_special"].get<std::string>());
        EXPECT_EQ(decode(special, SkipSpecial::kYes), line["decoded_skip"].get<std::string>());
    }
}

TEST_P(Conformance, DecodesAnyIdsAsTheReference) {
    for (const json& line : lines("decode.jsonl")) {
        SCOPED_TRACE(line["ids"].dump());
        const std::vector<TokenId> ids = ids_of(line["ids"]);
        EXPECT_EQ(decode(ids, SkipSpecial::kNo), line["decoded"].get<std::string>());
        EXPECT_EQ(decode(ids, SkipSpecial::kYes), line["decoded_skip"].get<std::string>());
    }
}

INSTANTIATE_TEST_SUITE_P(
    Tokenizers,
    Conformance,
    testing::ValuesIn(tokenizer_names()),
    [](const auto& tested) {
        std::string name = tested.param;
        for (char& c : name) {
            if (c == '-' || c == '.') c = '_';
        }
        return name;
    }
);

TEST(ConformanceData, TheSharedTokenizersAreThere) {
    if (!std::filesystem::exists(shared_tokenizers_dir())) {
        GTEST_SKIP() << "no " << shared_tokenizers_dir()
                     << ": only the demo tokenizer was compared";
    }
    EXPECT_EQ(tokenizer_names().size(), 16u);
}

}  // namespace
}  // namespace pitstop::text
