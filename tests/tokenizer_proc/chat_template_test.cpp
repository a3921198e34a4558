// The handling of a chat before and after its template. tests/jinja tests the templates' output.
#include "tokenizer_proc/chat_template.h"

#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>

namespace pitstop::tokenizer {
namespace {

// A model's directory with these files.
class ChatTemplateTest : public testing::Test {
  protected:
    ChatTemplateTest() {
        const auto* test = testing::UnitTest::GetInstance()->current_test_info();
        dir_ = std::filesystem::temp_directory_path() / (std::string("pitstop-") + test->name());
        std::filesystem::create_directories(dir_);
    }
    ~ChatTemplateTest() override { std::filesystem::remove_all(dir_); }

    void write(const std::string& name, const std::string& text) {
        std::ofstream(dir_ / name) << text;
    }
    std::string render(const Chat& chat) {
        const Result<std::string> text = ChatTemplate::load(dir_.string())->render(chat, std::tm{});
        return text ? *text : "error: " + text.error().message;
    }
    std::string render(const std::string& variables) {
        return render(Chat{.variables = variables});
    }

    std::filesystem::path dir_;
};

constexpr auto kHi = R"({"messages": [{"role": "user", "content": "hi"}]})";

TEST_F(ChatTemplateTest, TheSpecialTokensOfTheConfigAreVariables) {
    write(
        "tokenizer_config.json",
        R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null,
            "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}"})"
    );
    EXPECT_EQ(render(kHi), "<s>hi</s>");
}

TEST_F(ChatTemplateTest, AFileOfItsOwnComesBeforeTheConfig) {
    write("tokenizer_config.json", R"({"chat_template": "config"})");
    write("chat_template.jinja", "file");
    EXPECT_EQ(render(kHi), "file");
}

TEST_F(ChatTemplateTest, OneOfSeveralIsForTools) {
    write(
        "tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "plain"},
                              {"name": "tool_use", "template": "tools"},
                              {"name": "rag", "template": "{% include 'x' %}"}]})"
    );
    EXPECT_EQ(render(kHi), "plain");
    EXPECT_EQ(
        render(R"({"messages": [{"role": "user", "content": "hi"}], "tools": [{"a": 1}]})"), "tools"
    );
}

TEST_F(ChatTemplateTest, AModelWithoutATemplateSaysSoWhenAChatComes) {
    EXPECT_EQ(
        render(kHi),
        "error: the model has no chat template: neither chat_template.jinja nor chat_template in "
        "tokenizer_config.json; a request may bring one"
    );
    EXPECT_EQ(render(Chat{.variables = kHi, .chat_template = "{{ messages[0].role }}"}), "user");
}

TEST_F(ChatTemplateTest, ATemplateThatIsNotSupportedNamesItsLineWhenAChatComes) {
    write("chat_template.jinja", "\n{% include 'x' %}");
    EXPECT_EQ(
        render(kHi), "error: the model's chat template: line 2: the tag 'include' is not supported"
    );
}

TEST_F(ChatTemplateTest, PartsOfTextAreJoinedForATemplateThatWantsText) {
    const auto* parts = R"({"messages": [{"role": "user", "content":
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]})";
    write("chat_template.jinja", "{{ '<' + messages[0].content + '>' }}");
    EXPECT_EQ(render(parts), "<a\nb>");
    write("chat_template.jinja", "{% for p in messages[0]['content'] %}({{ p.text }}){% endfor %}");
    EXPECT_EQ(render(parts), "(a)(b)");
    write("chat_template.jinja", "{{ '<' + messages[0].content + '>' }}");
    EXPECT_EQ(
        render(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})"),
        R"(error: messages[0].content[0]: the model takes text: {"type": "text", "text": ...})"
    );
}

TEST_F(ChatTemplateTest, ArgumentsOfToolCallsAreObjectsUnlessTheTemplateWantsText) {
    const auto* call = R"({"messages": [{"role": "assistant", "content": null, "tool_calls":
        [{"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [2]}"}}]}]})";
    write("chat_template.jinja", "{{ messages[0].tool_calls[0].function.arguments | tojson }}");
    EXPECT_EQ(render(call), R"({"b": 1, "a": [2]})");
    write("chat_template.jinja", "{{ '!' + messages[0].tool_calls[0].function.arguments }}");
    EXPECT_EQ(render(call), R"(!{"b": 1, "a": [2]})");
}

TEST_F(ChatTemplateTest, NullContentIsEmptyTextButBesideToolCalls) {
    write("chat_template.jinja", "{{ messages[0].content is none }}");
    EXPECT_EQ(render(R"({"messages": [{"role": "user", "content": null}]})"), "False");
    EXPECT_EQ(
        render(R"({"messages": [{"role": "assistant", "content": null, "tool_calls": []}]})"),
        "True"
    );
}

// Expected: the prompts of transformers' apply_chat_template(continue_final_message=True).
TEST_F(ChatTemplateTest, TheFinalMessageIsContinued) {
    write(
        "chat_template.jinja",
        "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[end]{% endfor %}"
    );
    const auto chat = [](const std::string& last) {
        return Chat{
            .variables = R"({"messages": [{"role": "user", "content": "x"},
                {"role": "assistant", "content": ")" +
                         last + R"("}]})",
            .continue_final_message = true};
    };
    EXPECT_EQ(render(chat("It is")), "[user]x[end][assistant]It is");
    EXPECT_EQ(render(chat("It is  ")), "[user]x[end][assistant]It is");
    EXPECT_EQ(render(chat("x")), "[user]x[end][assistant]x");
    Chat both = chat("a");
    both.variables.insert(1, R"("add_generation_prompt": true, )");
    EXPECT_EQ(
        render(both), "error: continue_final_message and add_generation_prompt exclude each other"
    );
    write("chat_template.jinja", "nothing");
    EXPECT_EQ(
        render(chat("It is")),
        "error: continue_final_message: the template changes the last message, so it is not in the "
        "prompt"
    );
}

// The message's text, a single letter or empty, also occurs in the template's own text after it.
TEST_F(ChatTemplateTest, APrefillThatTheTemplateWritesItselfIsContinuedInItsPlace) {
    write("chat_template.jinja", "{% for m in messages %}<{{ m.content }}<end>\n{% endfor %}");
    const auto chat = [](const std::string& content) {
        return Chat{
            .variables = R"({"messages": [{"role": "assistant", "content": )" + content + "}]}",
            .continue_final_message = true};
    };
    EXPECT_EQ(render(chat(R"("<")")), "<<");
    EXPECT_EQ(render(chat(R"("e")")), "<e");
    EXPECT_EQ(render(chat(R"("")")), "<");
    EXPECT_EQ(render(chat(R"("\n")")), "<\n");
    EXPECT_EQ(render(chat(R"(" ")")), "< ");
    EXPECT_EQ(render(chat("null")), "<");
    const auto* const parts = R"([{"type": "text", "text": "e"}, {"type": "text", "text": "n"}])";
    EXPECT_EQ(render(chat(parts)), "<e\nn");
    write("chat_template.jinja", "{% for p in messages[0]['content'] %}({{ p.text }}){% endfor %}");
    EXPECT_EQ(render(chat(parts)), "(e)(n");
    EXPECT_EQ(
        render(chat(R"([{"type": "image"}])")),
        "error: continue_final_message: the last message has no text"
    );
    write(
        "chat_template.jinja",
        "{{ messages[0].content.endswith('CONTINUE_FINAL_MESSAGE_TAG ') }}"
        "{{ messages[0].content }}!"
    );
    EXPECT_EQ(render(chat(R"("e")")), "Truee");
}

TEST_F(ChatTemplateTest, WhatIsNoChatIsRefused) {
    write("chat_template.jinja", "x");
    EXPECT_EQ(render("[]"), "error: the variables of a chat must be an object");
    EXPECT_EQ(render("{}"), "error: messages must be a list of at least one message");
    EXPECT_EQ(
        render(R"({"messages": []})"), "error: messages must be a list of at least one message"
    );
    EXPECT_EQ(render(R"({"messages": [1]})"), "error: messages[0] is not an object with a role");
    EXPECT_EQ(render("{"), "error: not valid JSON at byte 2");
}

TEST_F(ChatTemplateTest, WhatTheTemplateRaisesIsSaid) {
    write("chat_template.jinja", "{{ raise_exception('roles must alternate') }}");
    EXPECT_EQ(render(kHi), "error: the chat template: roles must alternate");
}

TEST_F(ChatTemplateTest, ATemplateOfARequestHasFewerSteps) {
    const std::string loops =
        "{% for a in range(2000) %}{% for b in range(400) %}{% endfor %}{% endfor %}";
    write("chat_template.jinja", loops);
    EXPECT_EQ(render(kHi), "");
    EXPECT_EQ(
        render(Chat{.variables = kHi, .chat_template = loops}),
        "error: the chat template: line 1: the rendering takes more than 500000 steps"
    );
}

}  // namespace
}  // namespace pitstop::tokenizer
