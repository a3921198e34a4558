// The deadlines of calls at the admin door that give no timeout, and the names of their phases.
#pragma once

#include "base/time.h"
#include "messages/calls.h"

#include <chrono>
#include <string_view>
#include <type_traits>

namespace pitstop::tokenizer {

// A flush or a pause that waits for requests may take long.
inline constexpr auto kStatusTimeout = std::chrono::seconds(5);
inline constexpr auto kControlTimeout = std::chrono::minutes(10);
inline constexpr auto kReadTimeout = std::chrono::minutes(1);
inline constexpr auto kGroupTimeout = std::chrono::minutes(5);
// A replica's answer to a late call is more precise than the door's, so the door waits this longer.
inline constexpr auto kReplicaGrace = std::chrono::milliseconds(200);

// Returns the deadline of a call without a timeout of its own.
template <class Message>
constexpr Duration timeout_of() {
    if constexpr (std::is_same_v<Message, messages::Status>) return kStatusTimeout;
    if constexpr (std::is_same_v<Message, messages::GetWeights> || std::is_same_v<Message, messages::WeightDigests>)
        return kReadTimeout;
    if constexpr (std::is_same_v<Message, messages::InitGroup> || std::is_same_v<Message, messages::DestroyGroup>)
        return kGroupTimeout;
    return kControlTimeout;
}

// Returns a word for the work that a call waits for: its reply's type without "_reply".
template <class Message>
constexpr std::string_view phase_of() {
    const std::string_view type = messages::ReplyTo<Message>::kType;
    return type.substr(0, type.rfind('_'));
}

}  // namespace pitstop::tokenizer
