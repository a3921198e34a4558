// Converts the items of a conversation in OpenAI's Responses API into the messages of a chat
// template.
//
// Source: OpenAI's API reference, "Create a model response", `input`.
#pragma once

#include "base/result.h"
#include "http_proc/format/chat_messages.h"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>

namespace pitstop::http {

// Adds one item of `input`: a message, a function call, a function's result, or a model's
// reasoning. Errors: kInvalidArgument, naming the item or part by its index.
[[nodiscard]] Result<> add_item(
    const nlohmann::ordered_json& item, std::size_t index, ChatMessages& to
);

}  // namespace pitstop::http
