// Converts the turns of a conversation in Anthropic's shape, with their blocks, into the messages
// of a chat template.
//
// Source: Anthropic's API reference, "Create a Message".
#pragma once

#include "base/result.h"
#include "http_proc/format/chat_messages.h"

#include <nlohmann/json_fwd.hpp>

namespace pitstop::http {

// Adds `system`: a text, or text blocks. Errors: kInvalidArgument, naming the block.
[[nodiscard]] Result<> add_system(const nlohmann::ordered_json& system, ChatMessages& to);

// Adds one of `messages`: its role, and a text or blocks. Consecutive turns of one role become one,
// as in Anthropic's API. Errors: kInvalidArgument, naming the message or block by its index.
[[nodiscard]] Result<> add_turn(
    const nlohmann::ordered_json& turn, std::size_t index, ChatMessages& to
);

}  // namespace pitstop::http
