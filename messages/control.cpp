#include "messages/control.h"

#include "messages/codec_impl.h"
#include "messages/generation.h"
#include "messages/weights.h"

#include <fmt/format.h>

#include <cmath>

namespace pitstop {
namespace {

std::optional<std::string> invalid_call(CallId call, std::int64_t timeout_ms) {
    if (raw(call) == 0) return "call is 0; choose a number of 1 or more";
    if (timeout_ms < 0) return fmt::format("timeout_ms is {}; accepted is 0 or more", timeout_ms);
    return std::nullopt;
}

}  // namespace

std::optional<std::string> invalid(const PauseGeneration& message) {
    if (!std::isfinite(message.max_pause_s) || message.max_pause_s < 0) {
        return fmt::format(
            "max_pause_s is {}; accepted is a finite number of 0 or more", message.max_pause_s
        );
    }
    return invalid_call(message.call, message.timeout_ms);
}

std::optional<std::string> invalid(const ContinueGeneration& message) {
    return invalid_call(message.call, message.timeout_ms);
}

std::optional<std::string> invalid(const Abort& message) {
    if (message.all == !message.rids.empty()) return "give either rids or all";
    if (message.rids.size() > kAbortIdsMax) {
        return fmt::format("{} rids; at most {} are accepted", message.rids.size(), kAbortIdsMax);
    }
    return invalid_call(message.call, message.timeout_ms);
}

std::optional<std::string> invalid(const FlushCache& message) {
    return invalid_call(message.call, message.timeout_ms);
}

std::optional<std::string> invalid(const SetWeightLabel& message) {
    if (message.label.empty() || message.label.size() > kLabelBytesMax) {
        return fmt::format(
            "label has {} bytes; accepted are 1 to {}", message.label.size(), kLabelBytesMax
        );
    }
    return invalid_call(message.call, message.timeout_ms);
}

std::optional<std::string> invalid(const Shutdown& message) {
    if (!std::isfinite(message.drain_s) || message.drain_s < 0) {
        return fmt::format(
            "drain_s is {}; accepted is a finite number of 0 or more", message.drain_s
        );
    }
    return invalid_call(message.call, message.timeout_ms);
}

INSTANTIATE_CODEC(PauseGeneration)
INSTANTIATE_CODEC(PausePart)
INSTANTIATE_CODEC(PauseReply)
INSTANTIATE_CODEC(ContinueGeneration)
INSTANTIATE_CODEC(ContinuePart)
INSTANTIATE_CODEC(ContinueReply)
INSTANTIATE_CODEC(Abort)
INSTANTIATE_CODEC(AbortReply)
INSTANTIATE_CODEC(FlushCache)
INSTANTIATE_CODEC(FlushPart)
INSTANTIATE_CODEC(FlushReply)
INSTANTIATE_CODEC(SetWeightLabel)
INSTANTIATE_CODEC(LabelPart)
INSTANTIATE_CODEC(LabelReply)
INSTANTIATE_CODEC(Shutdown)
INSTANTIATE_CODEC(ShutdownReply)

}  // namespace pitstop
