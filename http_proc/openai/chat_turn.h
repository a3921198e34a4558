// Decides how to parse the assistant's turns of a chat, for the routes that run a chat or render
// it.
#pragma once

#include "base/result.h"
#include "http_proc/generation/assistant_turn.h"
#include "http_proc/openai/chat_request.h"

namespace pitstop::http {

// Returns how to parse the chat's turns and the grammar of their calls, before the prompt is known.
// Errors: those of check_forced_call(), check_thinking() and call_grammar().
[[nodiscard]] Result<AssistantTurn::Args> turn_of_chat(
    const OutputFormats& formats, const OpenAiChat& call
);

}  // namespace pitstop::http
