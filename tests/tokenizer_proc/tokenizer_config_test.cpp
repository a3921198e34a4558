// Expected: vLLM's /tokenizer_info for such files, except for tokenizer_class, which is a class of
// transformers there.
#include "tokenizer_proc/tokenizer_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace pitstop::tokenizer {
namespace {

class TokenizerConfigTest : public testing::Test {
  protected:
    TokenizerConfigTest() {
        const auto* test = testing::UnitTest::GetInstance()->current_test_info();
        dir_ = std::filesystem::temp_directory_path() / (std::string("pitstop-") + test->name());
        std::filesystem::create_directories(dir_);
    }
    ~TokenizerConfigTest() override { std::filesystem::remove_all(dir_); }

    void write(const std::string& name, const std::string& text) {
        std::ofstream(dir_ / name) << text;
    }
    std::string read() {
        const Result<std::string> config = read_tokenizer_config(dir_.string());
        return config ? *config : "error: " + config.error().message;
    }

    std::filesystem::path dir_;
};

TEST_F(TokenizerConfigTest, TokensAreTheirTextsAndPathsAreLeftOut) {
    write(
        "tokenizer_config.json",
        R"({"bos_token": null, "eos_token": {"content": "</s>", "lstrip": false},
            "added_tokens_decoder": {"2": {"content": "</s>", "special": true}},
            "additional_special_tokens": [{"content": "<a>"}, "<b>"], "model_max_length": 1024,
            "vocab_file": "vocab.json", "merges_file": null,
            "tokenizer_class": "Qwen2Tokenizer", "chat_template": "{{ messages }}"})"
    );
    EXPECT_EQ(
        read(),
        R"({"bos_token": null, "eos_token": "</s>", "added_tokens_decoder": {"2": "</s>"}, )"
        R"("additional_special_tokens": ["<a>", "<b>"], "model_max_length": 1024, )"
        R"("tokenizer_class": "Qwen2Tokenizer", "chat_template": "{{ messages }}"})"
    );
}

TEST_F(TokenizerConfigTest, ATemplateOfItsOwnFileComesFirst) {
    write("tokenizer_config.json", R"({"chat_template": "config"})");
    write("chat_template.jinja", "file");
    EXPECT_EQ(read(), R"({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "file"})");
}

TEST_F(TokenizerConfigTest, OfSeveralTemplatesTheDefaultIsTold) {
    write(
        "tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "tools"},
                              {"name": "default", "template": "plain"}]})"
    );
    EXPECT_EQ(
        read(), R"({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "plain"})"
    );
}

TEST_F(TokenizerConfigTest, AModelWithoutTheFileHasNothingToTell) {
    EXPECT_EQ(read(), R"({"tokenizer_class": "PreTrainedTokenizerFast"})");
}

TEST_F(TokenizerConfigTest, AFileThatIsBrokenIsNamed) {
    write("tokenizer_config.json", "[]");
    EXPECT_NE(read().find("tokenizer_config.json': it is not an object"), std::string::npos)
        << read();
}

}  // namespace
}  // namespace pitstop::tokenizer
