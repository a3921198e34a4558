// Reads the turns of a conversation in Anthropic's shape, blocks and all, into the messages that a
// chat template takes.
//
// Source: Anthropic's API reference, "Create a Message".
#pragma once

#include "base/result.h"
#include "http_proc/format/chat_messages.h"

#include <nlohmann/json_fwd.hpp>

namespace pitstop::http {

// Adds `system`: a text, or blocks of text. Errors: kInvalidArgument, naming the block.
[[nodiscard]] Result<> add_system(const nlohmann::ordered_json& system, ChatMessages& to);

// Adds one of `messages`: its role, and a text or blocks. Turns of one role that follow each other
// are one, as there. Errors: kInvalidArgument, naming the message or the block of it, which is the
// one of that index.
[[nodiscard]] Result<> add_turn(
    const nlohmann::ordered_json& turn, std::size_t index, ChatMessages& to
);

}  // namespace pitstop::http
