#include "messages/control.h"

#include "messages/checks.h"

#include <fmt/format.h>

#include <cmath>

namespace pitstop::messages {
std::optional<std::string> invalid(const PauseGeneration& message) {
    if (!std::isfinite(message.max_pause_s) || message.max_pause_s < 0) {
        return fmt::format(
            "max_pause_s is {}; accepted is a finite number of 0 or more", message.max_pause_s
        );
    }
    return std::nullopt;
}

std::optional<std::string> invalid(const Abort& message) {
    if (message.all == !message.rids.empty()) return "give either rids or all";
    if (message.rids.size() > kAbortIdsMax) {
        return fmt::format("{} rids; at most {} are accepted", message.rids.size(), kAbortIdsMax);
    }
    return std::nullopt;
}

std::optional<std::string> invalid(const SetWeightLabel& message) {
    if (message.label.empty()) return "label is empty; give the version that serves a label";
    if (auto problem = invalid_label(message.label)) return problem;
    return std::nullopt;
}

std::optional<std::string> invalid(const Shutdown& message) {
    if (!std::isfinite(message.drain_s) || message.drain_s < 0) {
        return fmt::format(
            "drain_s is {}; accepted is a finite number of 0 or more", message.drain_s
        );
    }
    return std::nullopt;
}

}  // namespace pitstop::messages
