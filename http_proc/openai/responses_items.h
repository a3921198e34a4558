// Reads the items of a conversation in the shape of OpenAI's Responses API into the messages that a
// chat template takes.
//
// Source: OpenAI's API reference, "Create a model response", `input`.
#pragma once

#include "base/result.h"
#include "http_proc/format/chat_messages.h"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>

namespace pitstop::http {

// Adds one of the items of `input`: a message, a call of a function, what it gave back, or what a
// model thought. Errors: kInvalidArgument, naming the item or the part of it, which is the one of
// that index.
[[nodiscard]] Result<> add_item(
    const nlohmann::ordered_json& item, std::size_t index, ChatMessages& to
);

}  // namespace pitstop::http
