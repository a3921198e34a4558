// Tests the bytes of tokens in a grammar's vocabulary, and the vocabulary's encoding for another
// process.
#include "grammar/vocabulary.h"

#include "tests/grammar/small_vocabulary.h"
#include "tests/text/tokenizer_dirs.h"
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pitstop::grammar {
namespace {

TEST(Vocabulary, HasTheBytesOfATokenizersTokensAndNoneOfSpecialOnes) {
    const auto tokenizer = text::Tokenizer::load(text::demo_tokenizer_dir());
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    const std::int64_t vocab_len = (*tokenizer)->vocab_size() + 5;
    const std::vector<TokenId> end_ids{TokenId{7}, TokenId{3}, TokenId{7}, TokenId{1 << 30}};
    const Vocabulary vocabulary = Vocabulary::of(**tokenizer, vocab_len, end_ids);
    ASSERT_EQ(std::ssize(vocabulary.tokens), vocab_len);
    EXPECT_EQ(vocabulary.end_ids, (std::vector<TokenId>{TokenId{3}, TokenId{7}}));
    int num_special = 0;
    for (std::int32_t id = 0; id < (*tokenizer)->vocab_size(); ++id) {
        const std::string& bytes = vocabulary.tokens[static_cast<std::size_t>(id)];
        if ((*tokenizer)->is_special(TokenId{id})) {
            ++num_special;
            EXPECT_EQ(bytes, "") << id;
        } else if ((*tokenizer)->id_to_token(TokenId{id})) {
            EXPECT_EQ(bytes, *(*tokenizer)->bytes_of(TokenId{id})) << id;
        }
    }
    EXPECT_GT(num_special, 0);
    EXPECT_EQ(vocabulary.tokens.back(), "");
}

TEST(Vocabulary, ArrivesWholeOrNotAtAll) {
    const Vocabulary vocabulary = small_vocabulary();
    const std::string bytes = vocabulary.to_bytes();
    const auto read = Vocabulary::from_bytes(bytes);
    ASSERT_TRUE(read);
    EXPECT_EQ(*read, vocabulary);
    for (std::size_t len = 0; len < bytes.size(); ++len)
        EXPECT_FALSE(Vocabulary::from_bytes(std::string_view(bytes).substr(0, len))) << len;
}

}  // namespace
}  // namespace pitstop::grammar
