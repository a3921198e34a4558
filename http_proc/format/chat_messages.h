// Builds the messages that a chat template takes from a chat in another shape: OpenAI's items or
// Anthropic's turns and blocks. Templates know one shape, that of /v1/chat/completions.
//
//   ChatMessages messages;
//   messages.add_text("user", "How warm is it?", ChatMessages::Join::kNever);
//   messages.add_call({.id = "call_1", .name = "weather", .arguments = "{}"});
//   messages.add_result("call_1", "21 degrees", /*is_error=*/false);
//   variables["messages"] = messages.take();
//
// What the assistant says without another in between, text and calls, is one message, as it is
// where it comes from: the template's turns are the model's.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

class ChatMessages {
  public:
    enum class Join {
        kNever,     // it is a message of its own, unless it is the assistant's
        kSameRole,  // it goes on with the last message, where that is of the same role
    };

    // Adds some text, as a part of its own where it joins others.
    void add_text(std::string_view role, std::string text, Join join);
    // Adds what the assistant thought before what it says next, which templates know as
    // `reasoning_content`.
    void add_reasoning(std::string_view text);

    struct Call {
        std::string id{};
        std::string name{};
        std::string arguments{};  // JSON
    };
    void add_call(Call call);
    // Templates that ask see `is_error`.
    void add_result(std::string call_id, std::string text, bool is_error);

    [[nodiscard]] bool is_empty() const { return messages_.empty(); }
    // Tells whether the model's own words come last, for it to go on with.
    [[nodiscard]] bool ends_with_text_of_assistant() const;

    // Returns the list, and is empty then.
    [[nodiscard]] nlohmann::ordered_json take();

  private:
    struct Message {
        std::string role{};
        std::vector<std::string> texts{};
        std::string reasoning{};
        std::vector<Call> calls{};
        std::string result_of{};  // the call that a tool's message answers
        bool is_error = false;
    };

    Message& message_of(std::string_view role, Join join);
    [[nodiscard]] static nlohmann::ordered_json json_of(Message message);

    std::vector<Message> messages_{};
};

}  // namespace pitstop::http
