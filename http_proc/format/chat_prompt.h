// A request's chat, from which the model's chat template makes a prompt.
#pragma once

#include "messages/text_calls.h"

#include <cstddef>
#include <string>
#include <string_view>

namespace pitstop::http {

inline constexpr std::size_t kTemplateKwargsMax = 1024;
inline constexpr std::string_view kFewKwargs = "an object of at most 1024 members";

struct ChatPrompt {
    // The variables of RenderChat, a JSON object. Objects keep the order of their members, because
    // templates show it.
    std::string variables{};
    bool continue_final_message = false;
    std::string chat_template{};  // empty: the model's template

    [[nodiscard]] messages::RenderChat question() const {
        messages::RenderChat question;
        question.variables = variables;
        question.continue_final_message = continue_final_message;
        question.chat_template = chat_template;
        return question;
    }
};

}  // namespace pitstop::http
