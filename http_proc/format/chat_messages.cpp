#include "http_proc/format/chat_messages.h"

#include <nlohmann/json.hpp>

#include <utility>

namespace pitstop::http {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kAssistant = "assistant";

}  // namespace

ChatMessages::Message& ChatMessages::message_of(std::string_view role, Join join) {
    const bool joins = join == Join::kSameRole || role == kAssistant;
    if (joins && !messages_.empty() && messages_.back().role == role) return messages_.back();
    Message& message = messages_.emplace_back();
    message.role = role;
    return message;
}

void ChatMessages::add_text(std::string_view role, std::string text, Join join) {
    message_of(role, join).texts.push_back(std::move(text));
}

void ChatMessages::add_reasoning(std::string_view text) {
    message_of(kAssistant, Join::kSameRole).reasoning += text;
}

void ChatMessages::add_call(Call call) {
    message_of(kAssistant, Join::kSameRole).calls.push_back(std::move(call));
}

void ChatMessages::add_result(std::string call_id, std::string text, bool is_error) {
    Message& message = message_of("tool", Join::kNever);
    message.texts.push_back(std::move(text));
    message.result_of = std::move(call_id);
    message.is_error = is_error;
}

bool ChatMessages::ends_with_text_of_assistant() const {
    if (messages_.empty()) return false;
    const Message& last = messages_.back();
    return last.role == kAssistant && last.calls.empty() && !last.texts.empty();
}

OrderedJson ChatMessages::json_of(Message message) {
    OrderedJson json = OrderedJson::object();
    json["role"] = std::move(message.role);
    OrderedJson& content = json["content"];
    if (message.texts.size() == 1) {
        content = std::move(message.texts.front());
    } else if (!message.texts.empty()) {
        for (std::string& text : message.texts)
            content.push_back({{"type", "text"}, {"text", std::move(text)}});
    } else if (message.calls.empty()) {
        content = "";
    }
    if (!message.reasoning.empty()) json["reasoning_content"] = std::move(message.reasoning);
    for (Call& call : message.calls) {
        OrderedJson function{
            {"name", std::move(call.name)}, {"arguments", std::move(call.arguments)}};
        json["tool_calls"].push_back(
            {{"id", std::move(call.id)}, {"type", "function"}, {"function", std::move(function)}}
        );
    }
    if (json["role"] == "tool") json["tool_call_id"] = std::move(message.result_of);
    if (message.is_error) json["is_error"] = true;
    return json;
}

OrderedJson ChatMessages::take() {
    OrderedJson list = OrderedJson::array();
    for (Message& message : std::exchange(messages_, {}))
        list.push_back(json_of(std::move(message)));
    return list;
}

}  // namespace pitstop::http
