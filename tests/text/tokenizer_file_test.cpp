#include "text/tokenizer_file.h"

#include "base/mapped_file.h"
#include "tests/text/tokenizer_dirs.h"
#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <random>

namespace pitstop::text {
namespace {

using nlohmann::json;

json small_file() {
    return json::parse(R"({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 5, "content": "<s>", "single_word": false, "lstrip": false,
                          "rstrip": false, "normalized": false, "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4}, "merges": ["a b", ["Ġ", "ab"]]}
    })");
}

Error error_of(const json& file) {
    const auto parsed = Tokenizer::parse(file.dump());
    EXPECT_FALSE(parsed);
    return parsed ? Error{} : parsed.error();
}

// Changes the file at a path and expects an error with these words.
struct Bad {
    const char* path;
    json value;
    ErrorCode code;
    const char* words;
};

using enum ErrorCode;

const std::vector<Bad> kBad = {
    {"/version", "2.0", kUnsupported, "version '2.0'"},
    {"/truncation", json{{"max_length", 50}}, kUnsupported, "truncation"},
    {"/padding", json::object(), kUnsupported, "padding"},
    {"/normalizer/normalizers/0/type",
     "Precompiled",
     kUnsupported,
     "normalizer.normalizers[0]: the normalizer 'Precompiled'"},
    {"/normalizer/normalizers/0", 7, kMalformed, "normalizer.normalizers[0] is not an object"},
    {"/normalizer/normalizers",
     "x",
     kMalformed,
     "normalizer.normalizers is \"x\"; it takes an array"},
    {"/normalizer",
     json::parse(R"({"type":"Replace","pattern":{"Regex":"a*"},"content":""})"),
     kUnsupported,
     "empty text"},
    {"/normalizer",
     json::parse(R"({"type":"Replace","pattern":{"Regex":"(a"},"content":""})"),
     kMalformed,
     "normalizer.pattern: a group without"},
    {"/normalizer",
     json::parse(R"({"type":"Replace","pattern":{"String":""},"content":""})"),
     kUnsupported,
     "empty String"},
    {"/pre_tokenizer/type",
     "UnicodeScripts",
     kUnsupported,
     "pre_tokenizer: the pre-tokenizer 'UnicodeScripts'"},
    {"/pre_tokenizer/type", nullptr, kMalformed, "pre_tokenizer.type is null"},
    {"/pre_tokenizer/add_prefix_space",
     1,
     kMalformed,
     "pre_tokenizer.add_prefix_space is 1; it takes true or false"},
    {"/pre_tokenizer",
     json::parse(
         R"({"type":"Split","pattern":{"Regex":"\\G"},"behavior":"Isolated","invert":false})"
     ),
     kUnsupported,
     "pre_tokenizer.pattern: the escape \\G"},
    {"/pre_tokenizer",
     json::parse(R"({"type":"Split","pattern":{"String":"a"},"behavior":"Odd","invert":false})"),
     kMalformed,
     "pre_tokenizer.behavior is \"Odd\""},
    {"/pre_tokenizer",
     json::parse(R"({"type":"Metaspace","replacement":"__"})"),
     kMalformed,
     "one character"},
    {"/pre_tokenizer",
     json::parse(R"({"type":"FixedLength","length":0})"),
     kMalformed,
     "pre_tokenizer.length"},
    {"/post_processor/type", "Odd", kUnsupported, "post_processor: the post-processor 'Odd'"},
    {"/post_processor/single/0/SpecialToken/id",
     "<x>",
     kMalformed,
     "post_processor.single[0].SpecialToken.id"},
    {"/post_processor/single/1/Sequence/id",
     "B",
     kMalformed,
     "post_processor.single[1].Sequence.id"},
    {"/post_processor/special_tokens/<s>/ids/0",
     -1,
     kMalformed,
     "post_processor.special_tokens.<s>.ids[0]"},
    {"/decoder/type", "Odd", kUnsupported, "decoder: the decoder 'Odd'"},
    {"/decoder",
     json::parse(R"({"type":"Strip","content":" ","start":-1,"stop":0})"),
     kMalformed,
     "decoder.start is -1"},
    {"/model/type", "Unigram", kUnsupported, "model: the model 'Unigram'"},
    {"/model/dropout", 0.1, kUnsupported, "dropout"},
    {"/model/fuse_unk", "yes", kMalformed, "model.fuse_unk is \"yes\""},
    {"/model", json::array(), kMalformed, "model is missing or not an object"},
    {"/model/vocab", json::array(), kMalformed, "vocab"},
    {"/model/vocab/a", "x", kMalformed, "model.vocab: the id of token 'a'"},
    {"/model/vocab/a", -1, kMalformed, "model.vocab: the id of token 'a'"},
    {"/model/vocab/a", 1.5, kMalformed, "model.vocab: the id of token 'a'"},
    {"/model/vocab/a", 99999999, kTooLarge, "99999999"},
    {"/model/vocab/a", 1, kAlreadyExists, "have the same id 1"},
    {"/model/merges/0",
     "a zzz",
     kMalformed,
     "merge 0 joins 'a' and 'zzz', but 'zzz' is not in the vocabulary"},
    {"/model/merges/0", "b a", kMalformed, "'ba' is not in the vocabulary"},
    {"/model/merges/0", "ab", kMalformed, "model.merges: merge 0 is neither"},
    {"/model/merges/0", "a b c", kMalformed, "model.merges: merge 0 is neither"},
    {"/model/merges/1", json::array({"a"}), kMalformed, "model.merges"},
    {"/model/merges/1", json::array({"a", "b", "c"}), kMalformed, "model.merges"},
    {"/model/merges/1", 5, kMalformed, "model.merges: merge 1 is neither"},
    {"/model/merges", json::object(), kMalformed, "merges"},
    {"/added_tokens/0/content", 5, kMalformed, "tokenizer.added_tokens[0].content is 5"},
    {"/added_tokens/0/special", nullptr, kMalformed, "tokenizer.added_tokens[0].special"},
    {"/added_tokens", json::object(), kMalformed, "tokenizer.added_tokens"},
};

TEST(TokenizerFile, TheSmallTokenizerIsGood) {
    const auto parsed = Tokenizer::parse(small_file().dump());
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(
        *(*parsed)->encode("ab<s> ab", AddSpecial::kYes),
        (std::vector{TokenId{5}, TokenId{2}, TokenId{5}, TokenId{4}})
    );
    EXPECT_EQ((*parsed)->vocab_size(), 6);
    EXPECT_EQ((*parsed)->token_to_id("<s>"), TokenId{5});
    EXPECT_EQ((*parsed)->token_to_id("Ġab"), TokenId{4});
    EXPECT_EQ((*parsed)->token_to_id("nope"), std::nullopt);
    EXPECT_EQ((*parsed)->id_to_token(TokenId{4}), "Ġab");
    EXPECT_EQ((*parsed)->id_to_token(TokenId{6}), std::nullopt);
    EXPECT_EQ((*parsed)->id_to_token(TokenId{-1}), std::nullopt);
    EXPECT_TRUE((*parsed)->is_special(TokenId{5}));
    EXPECT_FALSE((*parsed)->is_special(TokenId{4}));
    EXPECT_TRUE((*parsed)->warnings().empty());
}

TEST(TokenizerFile, AFaultIsNamedWithItsPlace) {
    for (const Bad& bad : kBad) {
        SCOPED_TRACE(bad.path);
        json file = small_file();
        file[json::json_pointer(bad.path)] = bad.value;
        const Error error = error_of(file);
        EXPECT_EQ(name_of(error.code), name_of(bad.code)) << error.message;
        EXPECT_NE(error.message.find(bad.words), std::string::npos) << error.message;
    }
}

TEST(TokenizerFile, ATokenThatComesTwiceIsRefused) {
    const auto parsed =
        Tokenizer::parse(R"({"model": {"type": "BPE", "vocab": {"a": 0, "a": 1}, "merges": []}})");
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.error().message, "token 'a' has two ids, 0 and 1");
}

TEST(TokenizerFile, MergesMayComeBeforeTheVocabulary) {
    const auto parsed =
        Tokenizer::parse(R"({"model": {"merges": ["a b"], "vocab": {"a": 0, "b": 1, "ab": 2}}})");
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(*(*parsed)->encode("ab", AddSpecial::kNo), std::vector{TokenId{2}});
}

TEST(TokenizerFile, AnAddedTokensOwnIdIsOnlyAWarning) {
    json file = small_file();
    file["added_tokens"][0]["id"] = 77;
    const auto parsed = Tokenizer::parse(file.dump());
    ASSERT_TRUE(parsed);
    ASSERT_EQ((*parsed)->warnings().size(), 1u);
    EXPECT_EQ(
        (*parsed)->warnings()[0], "tokenizer.added_tokens[0]: '<s>' says it has id 77, but has 5"
    );
}

TEST(TokenizerFile, AMissingUnkTokenMattersOnlyWhereItIsNeeded) {
    json file = small_file();
    file["model"]["unk_token"] = "<nowhere>";
    const auto parsed = Tokenizer::parse(file.dump());
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_TRUE((*parsed)->encode("ab", AddSpecial::kNo));
    const auto unknown = (*parsed)->encode("abz", AddSpecial::kNo);
    ASSERT_FALSE(unknown);
    EXPECT_EQ(unknown.error().code, ErrorCode::kUnsupported);
}

TEST(TokenizerFile, APathWithoutATokenizerFileIsAnError) {
    const auto missing = Tokenizer::load("/nowhere/at/all");
    ASSERT_FALSE(missing);
    EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
    for (const char* text :
         {"",
          " ",
          "{",
          "[]",
          "null",
          "{}",
          "\xff",
          "{\"model\": {\"type\": \"BPE\"}}",
          "{\"a\": \"\\ud800\"}"}) {
        EXPECT_FALSE(Tokenizer::parse(text)) << text;
    }
    EXPECT_FALSE(Tokenizer::parse(std::string(100'000, '[')));
    std::string deep;
    for (int i = 0; i < 100; ++i) deep += R"({"normalizer":)";
    EXPECT_FALSE(Tokenizer::parse(deep));
}

// A parsed value needs many times the two bytes that it has in the file: 256 MiB of them needed
// GiBs.
TEST(TokenizerFile, MoreValuesThanAnyTokenizerHasAreNotKept) {
    std::string text = R"({"x":[0)";
    for (int i = 0; i < 2'000'000; ++i) text += ",0";
    const auto refused = Tokenizer::parse(text + "]}");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge);
    EXPECT_EQ(refused.error().message, "more than 2000000 values");
}

TEST(TokenizerFile, AFileOverTheLimitIsNotRead) {
    const auto path = std::filesystem::temp_directory_path() / "pitstop_huge_tokenizer.json";
    std::ofstream(path) << "{}";
    std::filesystem::resize_file(path, Tokenizer::kFileBytesMax + 1);  // sparse
    const auto huge = Tokenizer::load(path);
    std::filesystem::remove(path);
    ASSERT_FALSE(huge);
    EXPECT_EQ(huge.error().code, ErrorCode::kTooLarge);
}

void try_file(const std::string& text) {
    const auto parsed = Tokenizer::parse(text);
    if (!parsed) {
        EXPECT_FALSE(parsed.error().message.empty());
        return;
    }
    const auto ids =
        (*parsed)->encode("Once upon a time, <|endoftext|> é中😀 \n x", AddSpecial::kYes);
    if (ids) {
        const auto decoded = (*parsed)->decode(*ids, SkipSpecial::kYes);
        EXPECT_TRUE(!decoded || !decoded->empty() || ids->empty() || true);
    }
}

TEST(TokenizerFile, DamagedBytesNeverCrashTheLoader) {
    const auto demo = MappedFile::read(demo_tokenizer_dir() / "tokenizer.json", 1 << 20);
    ASSERT_TRUE(demo);
    const std::string small = small_file().dump();
    std::mt19937 random(21);
    for (int round = 0; round < 1000; ++round) {
        std::string text = round % 20 == 0 ? *demo : small;
        for (std::size_t n = 1 + random() % 4; n > 0; --n) {
            const std::size_t at = random() % text.size();
            switch (random() % 4) {
                case 0:
                    text[at] = static_cast<char>(random());
                    break;
                case 1:
                    text.erase(at, 1 + random() % 20);
                    break;
                case 2:
                    text.insert(at, 1, "{}[]\",:0\\"[random() % 9]);
                    break;
                case 3:
                    text.insert(at, text.substr(random() % text.size(), random() % 30));
                    break;
            }
            if (text.empty()) text = "x";
        }
        try_file(text);
    }
}

// Replaces parts of the tree by other parts of it, or by odd values.
TEST(TokenizerFile, DamagedTreesNeverCrashTheLoader) {
    const json odd[] = {
        nullptr,
        true,
        0,
        -1,
        1.5,
        1e300,
        "",
        "x",
        "\u0000",
        json::array(),
        json::object(),
        18446744073709551615u};
    std::mt19937 random(22);
    for (int round = 0; round < 1000; ++round) {
        const json flat = small_file().flatten();
        json file = small_file();
        for (std::size_t n = 1 + random() % 3; n > 0; --n) {
            auto at = flat.begin();
            std::advance(at, random() % flat.size());
            json::json_pointer pointer(at.key());
            for (std::size_t up = random() % 3; up > 0 && !pointer.empty(); --up)
                pointer.pop_back();
            auto other = flat.begin();
            std::advance(other, random() % flat.size());
            const json value = random() % 2 == 0 ? odd[random() % std::size(odd)] : other.value();
            if (file.contains(pointer)) file[pointer] = value;
        }
        try_file(file.dump());
    }
}

TEST(TokenizerFile, RandomBytesNeverCrashTheLoader) {
    std::mt19937 random(23);
    for (int round = 0; round < 2000; ++round) {
        std::string text;
        for (std::size_t n = random() % 200; n > 0; --n)
            text.push_back(static_cast<char>(random()));
        EXPECT_FALSE(Tokenizer::parse(text));
    }
}

// Twenty steps that each double the text make a million letters of one.
TEST(TokenizerFile, ANormalizersGrowthIsBounded) {
    json file = small_file();
    json steps = json::array();
    for (int i = 0; i < 20; ++i) {
        steps.push_back(json::parse(R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})")
        );
    }
    file["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
    const auto parsed = Tokenizer::parse(file.dump());
    ASSERT_TRUE(parsed) << parsed.error().message;
    const auto ids = (*parsed)->encode(std::string(1000, 'a'), AddSpecial::kNo);
    ASSERT_FALSE(ids);
    EXPECT_EQ(ids.error().code, ErrorCode::kTooLarge);
    EXPECT_NE(ids.error().message.find("normalizer"), std::string::npos);
    // work_max() tells the cost before the call, so that a caller with a loop can refuse it.
    EXPECT_GE((*parsed)->work_max(1000), 20'000u);
    EXPECT_LT((*parsed)->work_max(1000), std::size_t{20} * 32'001);

    for (int i = 0; i < 100; ++i) steps.push_back(steps[0]);
    file["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
    EXPECT_FALSE(Tokenizer::parse(file.dump()));
}

TEST(TokenizerFile, APreTokenizersGrowthIsBounded) {
    json file = small_file();
    json steps = json::array();
    for (int i = 0; i < 20; ++i) {
        steps.push_back(
            json::parse(R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":false})")
        );
    }
    file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
    const auto parsed = Tokenizer::parse(file.dump());
    ASSERT_TRUE(parsed) << parsed.error().message;
    std::string text;
    for (int i = 0; i < 1000; ++i) text += "\xc3\xa9";
    const auto ids = (*parsed)->encode(text, AddSpecial::kNo);
    ASSERT_FALSE(ids);
    EXPECT_EQ(ids.error().code, ErrorCode::kTooLarge);
}

}  // namespace
}  // namespace pitstop::text
