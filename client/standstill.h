// Explains why a tree that answers generates nothing, and what lets it continue, to callers that
// wait for output.
#pragma once

#include "messages/status.h"

#include <chrono>
#include <optional>
#include <string>

namespace pitstop {

// A waiting caller is warned after this time without output.
constexpr std::chrono::milliseconds kSilenceMax{2'000};

// Returns why the replica does not generate: "paused (in_place) for 6.1 s; continue ends the
// pause"; nothing if it may generate.
[[nodiscard]] std::optional<std::string> why_it_stands(const messages::ReplicaStatus& replica);

// Returns the reason of the first replica that may not generate; nothing if all may.
[[nodiscard]] std::optional<std::string> why_it_stands(const messages::StatusReply& status);

}  // namespace pitstop
