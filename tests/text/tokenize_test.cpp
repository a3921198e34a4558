// Runs the program pitstop_tokenize as a user runs it.
#include "tests/text/tokenizer_dirs.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <fstream>
#include <sys/wait.h>

namespace pitstop::text {
namespace {

using nlohmann::json;

struct Ran {
    std::vector<json> lines{};
    int exit_code = -1;
};

Ran run(const std::string& flags, const std::string& input) {
    const auto file =
        std::filesystem::temp_directory_path() / ("pitstop_tokenize_" + std::to_string(::getpid()));
    std::ofstream(file) << input;
    const std::string command = PITSTOP_TOKENIZE " --tokenizer " + demo_tokenizer_dir().string() +
                                " " + flags + " < " + file.string();
    Ran ran;
    std::FILE* pipe = ::popen(command.c_str(), "r");
    EXPECT_NE(pipe, nullptr);
    std::string output;
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe))
        output.push_back(static_cast<char>(c));
    ran.exit_code = WEXITSTATUS(::pclose(pipe));
    std::filesystem::remove(file);
    std::istringstream lines(output);
    for (std::string line; std::getline(lines, line);) ran.lines.push_back(json::parse(line));
    return ran;
}

TEST(Tokenize, AnswersTextAndIds) {
    const Ran ran =
        run("",
            "{\"text\": \"Once upon a time\"}\n{\"ids\": [740, 543, 258, 498]}\n{\"text\": "
            "\"\"}\n{\"text\": \"\\u4e2d \\ud83d\\ude00\"}");
    EXPECT_EQ(ran.exit_code, 0);
    ASSERT_EQ(ran.lines.size(), 4u);
    const json once = {{"ids", {740, 543, 258, 498}}, {"text", "Once upon a time"}};
    EXPECT_EQ(ran.lines[0], once);
    EXPECT_EQ(ran.lines[1], once);
    EXPECT_EQ(ran.lines[2], (json{{"ids", json::array()}, {"text", ""}}));
    EXPECT_EQ(ran.lines[3]["text"], "中 😀");
}

TEST(Tokenize, SkipsSpecialTokensOnRequest) {
    const std::string input = "{\"text\": \"<|endoftext|>a\"}\n";
    EXPECT_EQ(run("", input).lines.at(0)["text"], "<|endoftext|>a");
    EXPECT_EQ(run("--skip-special-tokens --add-special-tokens", input).lines.at(0)["text"], "a");
}

TEST(Tokenize, ABadLineIsAnsweredAndTheRunGoesOn) {
    const std::string bad[] = {
        "",
        "x",
        "[]",
        "{}",
        "{\"text\": 1}",
        "{\"ids\": 1}",
        "{\"ids\": [1.5]}",
        "{\"ids\": [-1]}",
        "{\"ids\": [999999]}",
        "{\"ids\": [[[[1]]]]}",
        "{\"text\": \"a\", \"ids\": []}",
        "{\"text\": \"a\", \"more\": 1}",
        "{\"txt\": \"a\"}",
        "{\"text\": \"\\ud800\"}",
        "{\"text\": \"a\xff\"}",
        "{\"\xff\": 1}",
        "{\"ids\": " + std::string(100'000, '['),
        "{\"ids\": [" + std::string(50'000, '[') + std::string(50'000, ']') + "]}",
    };
    std::string input;
    for (const std::string& line : bad) input += line + "\n{\"text\": \"a\"}\n";
    const Ran ran = run("", input);
    EXPECT_EQ(ran.exit_code, 1);
    ASSERT_EQ(ran.lines.size(), 2 * std::size(bad));
    for (std::size_t i = 0; i < std::size(bad); ++i) {
        EXPECT_TRUE(ran.lines[2 * i].contains("error")) << bad[i].substr(0, 40);
        EXPECT_FALSE(ran.lines[2 * i]["error"]["message"].get<std::string>().empty());
        EXPECT_FALSE(ran.lines[2 * i]["error"]["code"].get<std::string>().empty());
        EXPECT_EQ(ran.lines[2 * i + 1]["text"], "a");
    }
}

}  // namespace
}  // namespace pitstop::text
