// Makes the prompt of an assistant's turn from a chat or tokens; it may begin a forced call.
#pragma once

#include "http_proc/format/chat_prompt.h"
#include "http_proc/format/forced_call.h"
#include "http_proc/format/thinking.h"
#include "http_proc/server/exchange.h"

#include <optional>
#include <string>
#include <vector>

namespace pitstop::http {

struct TurnPrompt {
    std::vector<TokenId> ids{};
    std::string text{};     // the text of a chat's prompt; empty if the caller gave tokens
    std::string opening{};  // the beginning of a forced call, which ends the prompt; may be empty
    // Where the output begins, if the server has a format of thinking.
    ThinkingParser::Start start = ThinkingParser::Start::kOutside;
    bool has_ended_thinking = false;  // the prompt has ended the thinking: the output has none
};

// Makes the prompt; `given` are tokens that replace the template's. If the prompt's end opens the
// model's thinking, a forced call first closes it. Errors: kUnsupported if the model has no
// template for the chat; those of check_forced_call().
[[nodiscard]] Task<Result<TurnPrompt>> prompt_of_turn(
    Exchange& exchange,
    const ChatPrompt& chat,
    const std::optional<ForcedCall>& forced,
    std::optional<std::vector<TokenId>> given = {}
);

}  // namespace pitstop::http
