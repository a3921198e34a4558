#include "text/incremental_decoder.h"

#include "tests/text/tokenizer_dirs.h"
#include "text/utf8.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <random>

namespace pitstop::text {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;

struct Streamed {
    std::string text{};
    bool every_piece_is_utf8 = true;
};

Streamed stream(
    const std::shared_ptr<const Tokenizer>& tokenizer,
    const IncrementalDecoder::Options& options,
    std::span<const TokenId> prompt,
    std::span<const TokenId> output
) {
    IncrementalDecoder decoder(tokenizer, options, prompt);
    Streamed streamed;
    const auto take = [&](std::string& piece) {
        if (find_invalid_utf8(piece)) streamed.every_piece_is_utf8 = false;
        streamed.text += piece;
        piece.clear();
    };
    std::string piece;
    for (const TokenId id : output) {
        EXPECT_TRUE(decoder.push(id, piece));
        take(piece);
    }
    EXPECT_TRUE(decoder.finish(piece));
    take(piece);
    return streamed;
}

class StreamedText : public testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        auto loaded = Tokenizer::load(tokenizer_dir(GetParam()));
        ASSERT_TRUE(loaded) << loaded.error().message;
        tokenizer_ = *std::move(loaded);
        // The cases are real texts, and random ids, most of which are no text.
        std::ifstream lines(tokenizer_dir(GetParam()) / "expected.jsonl");
        for (std::string line; std::getline(lines, line);) {
            Ids ids;
            const json expected = json::parse(line);
            for (const json& id : expected["ids_special"])
                ids.push_back(TokenId{id.get<std::int32_t>()});
            if (ids.size() < 500) sequences_.push_back(std::move(ids));
        }
        std::mt19937 random(11);
        for (int i = 0; i < 600; ++i) {
            const auto id_end = static_cast<unsigned>(i % 2 == 0 ? tokenizer_->vocab_size() : 300);
            Ids ids;
            for (std::size_t n = random() % 40; n > 0; --n) {
                ids.push_back(TokenId{static_cast<std::int32_t>(random() % id_end)});
            }
            sequences_.push_back(std::move(ids));
        }
    }
    std::string decode(std::span<const TokenId> ids, SkipSpecial skip) const {
        return *tokenizer_->decode(ids, skip);
    }

    std::shared_ptr<const Tokenizer> tokenizer_{};
    std::vector<Ids> sequences_{};
};

TEST_P(StreamedText, IsTheTextDecodedAtOnce) {
    for (const Ids& ids : sequences_) {
        for (const SkipSpecial skip : {SkipSpecial::kNo, SkipSpecial::kYes}) {
            const Streamed streamed = stream(tokenizer_, {.skip_special = skip}, {}, ids);
            ASSERT_EQ(streamed.text, decode(ids, skip));
            ASSERT_TRUE(streamed.every_piece_is_utf8);
        }
    }
}

TEST_P(StreamedText, ContinuesItsPrompt) {
    std::mt19937 random(12);
    int num_compared = 0;
    for (const Ids& ids : sequences_) {
        if (ids.empty()) continue;
        const std::span<const TokenId> all = ids;
        const std::size_t prompt_len = random() % ids.size();
        const auto prompt = all.first(prompt_len);
        for (const SkipSpecial skip : {SkipSpecial::kNo, SkipSpecial::kYes}) {
            const Streamed streamed =
                stream(tokenizer_, {.skip_special = skip}, prompt, all.subspan(prompt_len));
            ASSERT_TRUE(streamed.every_piece_is_utf8);
            // Where the prompt decodes to complete text, the output is the rest of the whole text.
            const std::string whole = decode(all, skip);
            const std::string before = decode(prompt, skip);
            if (before.ends_with(kReplacementCharacter) || !whole.starts_with(before)) continue;
            ++num_compared;
            ASSERT_EQ(before + streamed.text, whole) << json(before).dump() << " " << prompt_len;
        }
    }
    EXPECT_GT(num_compared, 200);
}

INSTANTIATE_TEST_SUITE_P(
    Tokenizers,
    StreamedText,
    testing::ValuesIn(tokenizer_names()),
    [](const auto& tested) {
        std::string name = tested.param;
        for (char& c : name) {
            if (c == '-' || c == '.') c = '_';
        }
        return name;
    }
);

// Makes a tokenizer in SentencePiece's manner, of bytes and a few words.
std::shared_ptr<const Tokenizer> byte_fallback_tokenizer(const json& decoder) {
    json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
    for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = 3 + byte;
    vocab["▁Hi"] = 259;
    vocab["▁"] = 260;
    const auto special = [](int id, const char* content) {
        return json{
            {"id", id},
            {"content", content},
            {"single_word", false},
            {"lstrip", false},
            {"rstrip", false},
            {"normalized", false},
            {"special", true}};
    };
    const json file = {
        {"added_tokens", {special(1, "<s>"), special(2, "</s>")}},
        {"decoder", decoder},
        {"model",
         {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}, {"byte_fallback", true}}},
    };
    auto parsed = Tokenizer::parse(file.dump());
    EXPECT_TRUE(parsed) << parsed.error().message;
    return *parsed;
}

std::shared_ptr<const Tokenizer> llama_like() {
    return byte_fallback_tokenizer(json::parse(R"({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})"));
}

Ids bytes(std::string_view text) {
    Ids ids;
    for (const char c : text) ids.push_back(TokenId{3 + static_cast<unsigned char>(c)});
    return ids;
}

TEST(IncrementalDecoder, StripsTheFirstSpaceOnlyAtTheVeryBeginning) {
    const auto tokenizer = llama_like();
    const Ids hi = {TokenId{259}};
    const Ids only_bos = {TokenId{1}};
    const Ids said = {TokenId{1}, TokenId{259}};
    EXPECT_EQ(stream(tokenizer, {}, {}, hi).text, "Hi");
    EXPECT_EQ(stream(tokenizer, {}, only_bos, hi).text, "Hi");
    EXPECT_EQ(stream(tokenizer, {}, said, hi).text, " Hi");
    EXPECT_EQ(stream(tokenizer, {.skip_special = SkipSpecial::kNo}, only_bos, hi).text, " Hi");
}

TEST(IncrementalDecoder, ACodePointBegunInThePromptBelongsToTheOutput) {
    const auto tokenizer = llama_like();
    const Ids ids = bytes("é中!");
    const auto output_behind = [&](std::size_t prompt_len) {
        return stream(
                   tokenizer,
                   {},
                   std::span(ids).first(prompt_len),
                   std::span(ids).subspan(prompt_len)
        )
            .text;
    };
    EXPECT_EQ(output_behind(0), "é中!");
    EXPECT_EQ(output_behind(1), "é中!");
    EXPECT_EQ(output_behind(2), "中!");  // one run of bytes, whose é belongs to the prompt
    EXPECT_EQ(output_behind(3), "中!");
    EXPECT_EQ(output_behind(4), "中!");
    EXPECT_EQ(output_behind(5), "!");
    EXPECT_EQ(output_behind(6), "");
}

// Tokenizers of this kind have a byte token for a newline, and prompts end in newlines.
TEST(IncrementalDecoder, ANewlineThatEndsThePromptIsNotTheOutputs) {
    const auto tokenizer = llama_like();
    Ids prompt = {TokenId{1}, TokenId{259}};
    prompt.push_back(bytes("\n")[0]);
    Ids output = bytes("\n");
    output.push_back(TokenId{259});
    EXPECT_EQ(stream(tokenizer, {}, prompt, output).text, "\n Hi");
    EXPECT_EQ(stream(tokenizer, {}, prompt, std::span(output).last(1)).text, " Hi");
    EXPECT_EQ(stream(tokenizer, {}, prompt, {}).text, "");
}

TEST(IncrementalDecoder, AnEndOfWordSuffixBecomesASpaceOnlyWhenAWordFollows) {
    const auto tokenizer =
        byte_fallback_tokenizer(json::parse(R"({"type": "BPEDecoder", "suffix": "Hi"})"));
    const Ids words = {TokenId{259}, TokenId{260}, TokenId{259}};  // "▁Hi", "▁", "▁Hi"
    EXPECT_EQ(stream(tokenizer, {}, {}, words).text, "▁ ▁▁");
    EXPECT_EQ(
        stream(tokenizer, {}, std::span(words).first(1), std::span(words).subspan(1)).text, " ▁▁"
    );
}

TEST(IncrementalDecoder, ALongRunOfBytesInThePromptMayBeCutAnywhere) {
    const auto tokenizer = llama_like();
    Ids prompt;
    for (int i = 0; i < 20; ++i) {
        for (const TokenId id : bytes("中")) prompt.push_back(id);
    }
    for (std::size_t cut = 0; cut < 3; ++cut) {
        const std::string text =
            stream(tokenizer, {}, std::span(prompt).subspan(cut), bytes("文")).text;
        EXPECT_TRUE(text.ends_with("文")) << text;
        EXPECT_EQ(text.find(kReplacementCharacter), std::string::npos) << text;
    }
}

TEST(IncrementalDecoder, OneBadByteSpoilsItsRunAsInTheReference) {
    const auto tokenizer = llama_like();
    Ids ids = bytes("中");
    ids.push_back(TokenId{3 + 0xff});
    ids.push_back(TokenId{259});
    EXPECT_EQ(stream(tokenizer, {}, {}, ids).text, "\ufffd\ufffd\ufffd\ufffd Hi");
}

TEST(IncrementalDecoder, GivesOutTextAsSoonAsItIsFinal) {
    const auto demo = Tokenizer::load(demo_tokenizer_dir());
    ASSERT_TRUE(demo);
    const auto ids = (*demo)->encode("Once upon a time 中 there", AddSpecial::kNo);
    ASSERT_TRUE(ids);
    IncrementalDecoder decoder(*demo, {}, {});
    std::string text;
    int num_silent = 0;
    for (const TokenId id : *ids) {
        const std::size_t before = text.size();
        ASSERT_TRUE(decoder.push(id, text));
        num_silent += text.size() == before ? 1 : 0;
    }
    EXPECT_EQ(text, "Once upon a time 中 there");
    EXPECT_EQ(num_silent, 2);  // the first two bytes of 中
}

TEST(IncrementalDecoder, SpacesBetweenSpecialTokensCanBeLeftOut) {
    // There is no decoder: the reference joins tokens with spaces.
    const auto tokenizer = byte_fallback_tokenizer(nullptr);
    const Ids ids = {TokenId{259}, TokenId{1}, TokenId{2}, TokenId{1}, TokenId{259}};
    IncrementalDecoder::Options options{.skip_special = SkipSpecial::kNo};
    EXPECT_EQ(stream(tokenizer, options, {}, ids).text, "▁Hi <s> </s> <s> ▁Hi");
    options.spaces_between_special_tokens = false;
    EXPECT_EQ(stream(tokenizer, options, {}, ids).text, "▁Hi <s></s><s> ▁Hi");
}

TEST(IncrementalDecoder, IdsWithoutATokenAreSilent) {
    const auto tokenizer = llama_like();
    const Ids ids = {TokenId{259}, TokenId{100000}, TokenId{-5}, TokenId{259}};
    EXPECT_EQ(stream(tokenizer, {}, {}, ids).text, "Hi Hi");
    EXPECT_EQ(*tokenizer->decode(ids, SkipSpecial::kNo), "Hi Hi");
}

}  // namespace
}  // namespace pitstop::text
