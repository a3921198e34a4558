// Parses the bodies of Anthropic's /v1/messages and /v1/messages/count_tokens. Has no coroutines,
// so that a fuzz target can run it.
//
// Source: Anthropic's API reference, "Create a Message" and "Count tokens in a Message".
#pragma once

#include "base/result.h"
#include "http_proc/format/chat_call.h"

#include <string_view>

namespace pitstop::http {

// Errors: kInvalidArgument or kMalformed, which become status 400 with the text.
[[nodiscard]] Result<ChatCall> parse_anthropic_messages(std::string_view body);
// Parses a call that only counts tokens, so max_tokens is not required. Errors: the same.
[[nodiscard]] Result<ChatCall> parse_anthropic_count(std::string_view body);

}  // namespace pitstop::http
