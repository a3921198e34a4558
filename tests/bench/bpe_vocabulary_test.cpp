#include "bench/bpe_vocabulary.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <map>
#include <set>
#include <string>

namespace pitstop::bench {
namespace {

TEST(BpeVocabulary, EveryIdHasOneToken) {
    for (const std::int64_t vocab : {kBpeVocabMin, std::int64_t{2048}, std::int64_t{151936}}) {
        SCOPED_TRACE(testing::Message() << "vocab = " << vocab);
        const auto root = nlohmann::json::parse(tokenizer_json(vocab));
        std::set<std::int64_t> ids;
        for (const auto& [token, id] : root["model"]["vocab"].items())
            ids.insert(id.get<std::int64_t>());
        for (const auto& added : root["added_tokens"]) ids.insert(added["id"].get<std::int64_t>());
        ASSERT_EQ(ids.size(), static_cast<std::size_t>(vocab));
        EXPECT_EQ(*ids.begin(), 0);
        EXPECT_EQ(*ids.rbegin(), vocab - 1);
    }
}

TEST(BpeVocabulary, MergesJoinTokensThatExistBeforeThem) {
    const auto root = nlohmann::json::parse(tokenizer_json(40000));
    std::map<std::string, std::int64_t> vocab = root["model"]["vocab"];
    std::int64_t next = kNumBytes;
    for (const std::string merge : root["model"]["merges"]) {
        const std::size_t space = merge.find(' ');
        const std::string left = merge.substr(0, space);
        const std::string right = merge.substr(space + 1);
        ASSERT_TRUE(vocab.contains(left) && vocab[left] < next) << merge;
        ASSERT_TRUE(vocab.contains(right) && vocab[right] < next) << merge;
        ASSERT_TRUE(vocab.contains(left + right) && vocab[left + right] == next) << merge;
        ++next;
    }
    EXPECT_EQ(next, 40000 - kNumSpecial);
}

TEST(BpeVocabulary, TheLargestSizeIsReached) {
    const auto root = nlohmann::json::parse(tokenizer_json(kBpeVocabMax));
    EXPECT_EQ(root["model"]["vocab"].size(), static_cast<std::size_t>(kBpeVocabMax - kNumSpecial));
}

}  // namespace
}  // namespace pitstop::bench
