// Which calls need an update that is being collected to be over first (UpdateCoordinator::collect).
//
// What needs it: whatever generates again, reads weights or names them, gives memory back that
// generation needs, or is an update of its own. Status, aborts, pauses, groups and the end of the
// tree do not.
#pragma once

#include "messages/control.h"
#include "messages/memory.h"
#include "messages/weight_reads.h"
#include "messages/weights.h"

#include <algorithm>
#include <type_traits>

namespace pitstop::tokenizer {

// An update that brings everything anew.
template <class Message>
inline constexpr bool kReplacesAll = std::is_same_v<Message, messages::UpdateWeights> ||
                                     std::is_same_v<Message, messages::StageWeights> ||
                                     std::is_same_v<Message, messages::BeginUpdate>;

template <class Message>
[[nodiscard]] bool needs_collected(const Message& message) {
    if constexpr (std::is_same_v<Message, messages::ResumeMemory>) {
        return message.tags.empty() ||
               std::ranges::find(message.tags, messages::MemoryTag::kKvCache) != message.tags.end();
    } else {
        return kReplacesAll<Message> || std::is_same_v<Message, messages::ContinueGeneration> ||
               std::is_same_v<Message, messages::FlushCache> ||
               std::is_same_v<Message, messages::SetWeightLabel> ||
               std::is_same_v<Message, messages::ReleaseMemory> ||
               std::is_same_v<Message, messages::RollbackWeights> ||
               std::is_same_v<Message, messages::GetWeights> ||
               std::is_same_v<Message, messages::WeightDigests>;
    }
}

}  // namespace pitstop::tokenizer
