#include "messages/status.h"

#include "messages/checks.h"
#include "messages/codec_impl.h"
#include "messages/door_envelope.h"

#include <fmt/format.h>

namespace pitstop::messages {

std::optional<std::string> invalid(const Hello& message) {
    if (message.protocol != kDoorProtocolVersion) {
        return fmt::format(
            "protocol {} is not spoken here; this is {}", message.protocol, kDoorProtocolVersion
        );
    }
    return std::nullopt;
}

std::optional<std::string> invalid(const Tokenize& message) {
    if (auto problem = invalid_call(message.call)) return problem;
    if (auto problem = invalid_client(message.client)) return problem;
    if (message.text.has_value() == message.ids.has_value())
        return "give exactly one of text and ids";
    return std::nullopt;
}

std::optional<std::string> invalid(const RenderChat& message) {
    if (auto problem = invalid_call(message.call)) return problem;
    if (auto problem = invalid_client(message.client)) return problem;
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

}  // namespace pitstop::messages
