// Parses the body of OpenAI's /v1/chat/completions. It does nothing else and has no coroutines: the
// fuzz target runs it. What the messages must be is the template's to say.
#pragma once

#include "base/result.h"
#include "http_proc/openai/options.h"
#include "messages/status.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

// Holds a chat as a request gives it, to be rendered. Members of objects keep their order, which
// templates show.
struct OpenAiPromptChat {
    std::string variables{};  // RenderChat's
    bool continue_final_message = false;
    std::string chat_template{};

    [[nodiscard]] messages::RenderChat question() const;
};

struct OpenAiChat {
    OpenAiOptions options{};
    OpenAiPromptChat chat{};
    std::optional<std::vector<TokenId>> input_ids{};  // SGLang's: the prompt, past the template
    bool has_logprobs = false;
    std::int64_t top_logprobs = 0;
    bool has_tools = false;  // that the model may call
};

// Errors: kInvalidArgument, kMalformed: 400 with the text.
[[nodiscard]] Result<OpenAiChat> parse_openai_chat(std::string_view body);
// Parses the chat of a body that has one; the assistant's turn is begun unless it says otherwise.
[[nodiscard]] Result<OpenAiPromptChat> parse_prompt_chat(std::string_view body);

}  // namespace pitstop::http
