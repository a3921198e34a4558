// Says why a tree that answers generates nothing, and what lets it go on: for whoever waits for
// output.
#pragma once

#include "messages/status.h"

#include <chrono>
#include <optional>
#include <string>

namespace pitstop {

// A waiting caller is warned after this time without output.
constexpr std::chrono::milliseconds kSilenceMax{2'000};

// Says it for one replica: "paused (in_place) for 6.1 s; continue ends the pause"; nothing: it may
// generate.
[[nodiscard]] std::optional<std::string> why_it_stands(const messages::ReplicaStatus& replica);

// Says it for the first replica that stands; nothing: none does.
[[nodiscard]] std::optional<std::string> why_it_stands(const messages::StatusReply& status);

}  // namespace pitstop
