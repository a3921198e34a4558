// Parses the body of OpenAI's /v1/chat/completions. It does nothing else and has no coroutines: the
// fuzz target runs it. What the messages must be is the template's to say.
#pragma once

#include "base/result.h"
#include "http_proc/format/chat_prompt.h"
#include "http_proc/format/forced_call.h"
#include "http_proc/openai/options.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

struct OpenAiChat {
    OpenAiOptions options{};
    ChatPrompt chat{};
    std::optional<std::vector<TokenId>> input_ids{};  // SGLang's: the prompt, past the template
    bool has_logprobs = false;
    std::int64_t top_logprobs = 0;
    bool has_tools = false;       // the model may call some
    bool takes_one_call = false;  // what comes after its first call is left out
    std::optional<ForcedCall> forced_call{};
    bool wants_prompt_text = false;  // vLLM's: what the template made
};

// Errors: kInvalidArgument, kMalformed: 400 with the text.
[[nodiscard]] Result<OpenAiChat> parse_openai_chat(std::string_view body);
// Parses the chat of a body that has one; the assistant's turn is begun unless it says otherwise.
[[nodiscard]] Result<ChatPrompt> parse_prompt_chat(std::string_view body);

}  // namespace pitstop::http
