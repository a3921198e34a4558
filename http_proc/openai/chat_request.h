// Parses the body of OpenAI's /v1/chat/completions. Has no coroutines, so that a fuzz target can
// run it. The chat template decides which messages are valid.
#pragma once

#include "base/result.h"
#include "http_proc/format/call_grammar.h"
#include "http_proc/format/chat_prompt.h"
#include "http_proc/format/forced_call.h"
#include "http_proc/format/thinking_fields.h"
#include "http_proc/format/tool_schemas.h"
#include "http_proc/openai/options.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

struct OpenAiChat {
    OpenAiOptions options{};
    ChatPrompt chat{};
    // SGLang's: the prompt's tokens, which replace the template's
    std::optional<std::vector<TokenId>> input_ids{};
    bool has_logprobs = false;
    std::int64_t top_logprobs = 0;
    bool has_tools = false;       // the model may call tools
    bool takes_one_call = false;  // drop the output after the first call
    std::optional<ForcedCall> forced_call{};
    ThinkingFields thinking{};
    std::shared_ptr<const ToolSchemas> schemas{};  // of the tools; null: no tools
    std::vector<ToolSpec> tools{};                 // only if some are strict or a call is forced
    bool wants_prompt_text = false;                // vLLM's: the text that the template made
};

// Errors: kInvalidArgument or kMalformed, which become status 400 with the text.
[[nodiscard]] Result<OpenAiChat> parse_openai_chat(std::string_view body);
// Parses the chat of a body for a prompt. The template begins the assistant's turn unless the body
// asks otherwise.
[[nodiscard]] Result<ChatPrompt> parse_prompt_chat(std::string_view body);

}  // namespace pitstop::http
