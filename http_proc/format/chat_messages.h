// Builds the messages of a chat template from a chat in another shape: OpenAI's items, or
// Anthropic's turns and blocks. Templates accept one shape, that of /v1/chat/completions.
//
//   ChatMessages messages;
//   messages.add_text("user", "How warm is it?", ChatMessages::Join::kNever);
//   messages.add_call({.id = "call_1", .name = "weather", .arguments = "{}"});
//   messages.add_result("call_1", "21 degrees", /*is_error=*/false);
//   variables["messages"] = messages.take();
//
// Consecutive texts and calls of the assistant become one message, because a template expects one
// message per turn of the model.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

class ChatMessages {
  public:
    enum class Join {
        kNever,     // begins a new message, except that the assistant's texts join
        kSameRole,  // continues the last message if it has the same role
    };

    // Adds a text. If it joins a message, it becomes a separate part of that message.
    void add_text(std::string_view role, std::string text, Join join);
    // Adds the assistant's thoughts, which precede its next text or call; templates call them
    // `reasoning_content`.
    void add_reasoning(std::string_view text);

    struct Call {
        std::string id{};
        std::string name{};
        std::string arguments{};  // JSON
    };
    void add_call(Call call);
    // `is_error` becomes a member of the message; some templates read it.
    void add_result(std::string call_id, std::string text, bool is_error);

    [[nodiscard]] bool is_empty() const { return messages_.empty(); }
    // Returns whether the last message is the assistant's text, which the output then continues.
    [[nodiscard]] bool ends_with_text_of_assistant() const;

    // Moves the list out.
    [[nodiscard]] nlohmann::ordered_json take();

  private:
    struct Message {
        std::string role{};
        std::vector<std::string> texts{};
        std::string reasoning{};
        std::vector<Call> calls{};
        std::string result_of{};  // id of the call that a tool's message answers
        bool is_error = false;
    };

    Message& message_of(std::string_view role, Join join);
    [[nodiscard]] static nlohmann::ordered_json json_of(Message message);

    std::vector<Message> messages_{};
};

}  // namespace pitstop::http
