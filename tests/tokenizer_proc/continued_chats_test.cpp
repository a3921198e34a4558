// Ends prompts within the last message, as transformers does (tests/golden/make_continued.py).
#include "jinja/json.h"
#include "tests/jinja/reference_time.h"
#include "tests/source_dir.h"
#include "tokenizer_proc/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace pitstop::tokenizer {
namespace {

using jinja::Mapping;
using jinja::Value;

// The first line of the cases: the messages before the last one, and the special tokens.
struct Setting {
    std::vector<Value> chats{};
    Mapping special{};
};

Mapping parsed(const std::string& line) {
    const Result<Value> value = jinja::parse_json(line);
    EXPECT_TRUE(value && value->as_mapping() != nullptr) << line;
    return *value->as_mapping();
}

const Value& member(const Mapping& mapping, std::string_view name) { return *mapping.find(name); }

const std::string& text_of(const Mapping& mapping, std::string_view name) {
    return member(mapping, name).as_text()->bytes;
}

std::string source_of(const std::string& name) {
    std::ifstream file(source_dir() + "/tests/data/jinja/templates/" + name + ".jinja");
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

Chat chat_of(const Mapping& line, const Setting& setting) {
    const std::int64_t index = member(line, "chat").whole();
    std::vector<Value> messages =
        setting.chats.at(static_cast<std::size_t>(index)).as_sequence()->items;
    Mapping last;
    last.insert("role", Value::text("assistant"));
    last.insert("content", member(line, "final"));
    messages.push_back(Value::mapping(std::move(last)));
    Mapping variables = setting.special;
    variables.insert("messages", Value::list(std::move(messages)));
    jinja::Budget budget{jinja::Limits{}};
    return {
        .variables = *jinja::to_json(Value::mapping(std::move(variables)), {}, budget),
        .continue_final_message = true,
        .chat_template = source_of(text_of(line, "template"))};
}

TEST(ContinuedChats, EndWithinTheLastMessageAsInTransformers) {
    std::ifstream file(source_dir() + "/tests/data/chats/continued.jsonl");
    std::string json;
    ASSERT_TRUE(std::getline(file, json));
    const Mapping first = parsed(json);
    const Setting setting{
        member(first, "chats").as_sequence()->items, *member(first, "special").as_mapping()};
    int num_refused = 0;
    int num_cases = 0;
    for (; std::getline(file, json); ++num_cases) {
        SCOPED_TRACE(json);
        const Mapping line = parsed(json);
        const Result<std::string> prompt =
            ChatTemplate().render(chat_of(line, setting), jinja::reference_time());
        // If the template has changed the message's text, the prompt may still contain the text by
        // chance.
        const bool is_changed = line.find(std::string_view("is_changed")) != nullptr;
        if (is_changed || member(line, "text").is_none()) {
            ++num_refused;
            ASSERT_FALSE(prompt) << *prompt;
            EXPECT_EQ(
                prompt.error().message,
                "continue_final_message: the template changes the last message, so it is not in "
                "the "
                "prompt"
            );
        } else {
            ASSERT_TRUE(prompt) << prompt.error().message;
            EXPECT_EQ(*prompt, text_of(line, "text"));
        }
    }
    EXPECT_GT(num_cases, 900);
    EXPECT_GT(num_refused, 5);
}

}  // namespace
}  // namespace pitstop::tokenizer
