// The tokenizer's end token, read from a model's directory.
#include "tokenizer_proc/end_token.h"

#include "tests/source_dir.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <unistd.h>

namespace pitstop::tokenizer {
namespace {

class EndTokenTest : public testing::Test {
  protected:
    EndTokenTest() {
        const auto* test = testing::UnitTest::GetInstance()->current_test_info();
        dir_ = std::filesystem::temp_directory_path() /
               fmt::format("pitstop-{}-{}", test->name(), ::getpid());
        std::filesystem::create_directories(dir_);
        auto loaded = text::Tokenizer::load(source_dir() + "/launch/models/stories");
        CHECK(loaded.has_value());
        tokenizer_ = *loaded;
    }
    ~EndTokenTest() override { std::filesystem::remove_all(dir_); }

    Result<std::optional<TokenId>> read(const std::string& config) {
        std::ofstream(dir_ / "tokenizer_config.json") << config;
        return read_end_token(dir_.string(), *tokenizer_);
    }
    void expect_refused(const std::string& config, std::string_view part) {
        const auto token = read(config);
        ASSERT_FALSE(token.has_value()) << config;
        EXPECT_NE(token.error().message.find(part), std::string::npos) << token.error().message;
    }

    std::filesystem::path dir_;
    std::shared_ptr<const text::Tokenizer> tokenizer_;
};

TEST_F(EndTokenTest, IsTextOrAnAddedToken) {
    EXPECT_EQ(*read_end_token(dir_.string(), *tokenizer_), std::nullopt);  // no file
    EXPECT_EQ(*read(R"({"eos_token": "<|im_end|>"})"), TokenId{2047});
    EXPECT_EQ(*read(R"({"eos_token": {"content": "<|endoftext|>"}})"), TokenId{2045});
    EXPECT_EQ(*read(R"({"eos_token": null})"), std::nullopt);
    EXPECT_EQ(*read("{}"), std::nullopt);
}

TEST_F(EndTokenTest, OfABrokenFileIsNamed) {
    expect_refused("{", "tokenizer_config.json");
    expect_refused("[]", "not an object");
    expect_refused(R"({"eos_token": 7})", "eos_token is not a string");
    expect_refused(R"({"eos_token": "<nothing>"})", "'<nothing>' is not a token");
}

}  // namespace
}  // namespace pitstop::tokenizer
