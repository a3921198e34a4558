#include "messages/status.h"

#include "messages/codec_impl.h"

#include <fmt/format.h>

namespace pitstop {

std::optional<std::string> invalid(const Hello& message) {
    if (message.protocol != kProtocolVersion) {
        return fmt::format(
            "protocol {} is not spoken here; this is {}", message.protocol, kProtocolVersion
        );
    }
    return std::nullopt;
}

std::optional<std::string> invalid(const Status& message) {
    if (raw(message.call) == 0) return "call is 0; choose a number of 1 or more";
    if (message.timeout_ms < 0)
        return fmt::format("timeout_ms is {}; accepted is 0 or more", message.timeout_ms);
    return std::nullopt;
}

std::optional<std::string> invalid(const Tokenize& message) {
    if (raw(message.call) == 0) return "call is 0; choose a number of 1 or more";
    if (message.text.has_value() == message.ids.has_value())
        return "give exactly one of text and ids";
    return std::nullopt;
}

std::optional<std::string> invalid(const RenderChat& message) {
    if (raw(message.call) == 0) return "call is 0; choose a number of 1 or more";
    if (message.variables.empty()) return "variables is empty; it is a JSON object";
    return std::nullopt;
}

INSTANTIATE_CODEC(Hello)
INSTANTIATE_CODEC(HelloReply)
INSTANTIATE_CODEC(ErrorReply)
INSTANTIATE_CODEC(SchedulerHello)
INSTANTIATE_CODEC(Status)
INSTANTIATE_CODEC(ReplicaStatus)
INSTANTIATE_CODEC(StatusReply)
INSTANTIATE_CODEC(Tokenize)
INSTANTIATE_CODEC(TokenizeReply)
INSTANTIATE_CODEC(RenderChat)

}  // namespace pitstop
