// Prints answers of the admin door as lines for a person.
#pragma once

#include "base/ids.h"
#include "messages/adapters.h"
#include "messages/control_call.h"
#include "messages/memory.h"
#include "messages/weights.h"

#include <optional>
#include <string>

namespace pitstop {

// "version 7 (step-41)", or without a label "epoch 7".
[[nodiscard]] std::string version_text(Epoch epoch, const std::string& label);
// "adapter 'policy' version 7 (step-41)".
[[nodiscard]] std::string adapter_text(const messages::AdapterVersion& adapter);

void print_collected(const std::optional<messages::CollectedVersion>& update);
void print_update(const messages::UpdateReply& reply);
void print_memory(const messages::MemoryReply& reply);

}  // namespace pitstop
