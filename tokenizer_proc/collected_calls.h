// Knows which calls need an update that is being collected to be over first
// (UpdateCoordinator::collect).
//
// All calls do that generate again, read weights or name them, give memory back that generation
// needs, or are updates of their own. Only these do not.
#pragma once

#include "messages/calls.h"

#include <algorithm>
#include <type_traits>

namespace pitstop::tokenizer {

// Marks an update that brings everything anew.
template <class Message>
inline constexpr bool kReplacesAll = std::is_same_v<Message, messages::UpdateWeights> ||
                                     std::is_same_v<Message, messages::StageWeights> ||
                                     std::is_same_v<Message, messages::BeginUpdate>;

template <class Message>
inline constexpr bool kIsIndifferent = messages::MessageList<
    messages::Status,
    messages::PauseGeneration,
    messages::Abort,
    messages::Shutdown,
    messages::UpdateBucket,
    messages::CommitWeights,
    messages::DropStage,
    messages::InitGroup,
    messages::DestroyGroup>::has(Message::kType);

template <class Message>
[[nodiscard]] bool needs_collected(const Message& message) {
    if constexpr (std::is_same_v<Message, messages::ResumeMemory>) {
        return message.tags.empty() ||
               std::ranges::find(message.tags, messages::MemoryTag::kKvCache) != message.tags.end();
    } else {
        return !kIsIndifferent<Message>;
    }
}

}  // namespace pitstop::tokenizer
