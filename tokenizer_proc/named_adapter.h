// The adapter that a call at the admin door names.
//
// Pure: functions of their arguments.
#pragma once

#include "base/result.h"
#include "messages/adapters.h"
#include "messages/weights.h"

#include <string>
#include <type_traits>
#include <vector>

namespace pitstop::tokenizer {

// Returns the adapter's name; empty: the call names none.
template <class Message>
[[nodiscard]] std::string adapter_of(const Message& message) {
    if constexpr (requires { message.update.adapter; }) {
        return message.update.adapter;
    } else if constexpr (std::is_same_v<Message, messages::RollbackWeights>) {
        return message.adapter;
    } else if constexpr (std::is_same_v<Message, messages::UnloadAdapter>) {
        return message.name;
    } else {
        return {};
    }
}

// Refuses a name that requests could not use. `served`: the model's names.
template <class Message>
[[nodiscard]] Result<> check_adapter_of(
    const Message& message, const std::vector<std::string>& served
) {
    if (auto problem = messages::invalid_adapter_name(adapter_of(message), served))
        return Error{ErrorCode::kInvalidArgument, *std::move(problem)};
    return Ok{};
}

}  // namespace pitstop::tokenizer
