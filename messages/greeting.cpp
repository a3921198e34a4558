#include "messages/greeting.h"

#include "messages/door_envelope.h"

#include <fmt/format.h>

namespace pitstop::messages {

std::optional<std::string> invalid(const Hello& message) {
    if (message.protocol != kDoorProtocolVersion) {
        return fmt::format(
            "protocol {} is not supported; this tree has {}", message.protocol, kDoorProtocolVersion
        );
    }
    return std::nullopt;
}

std::optional<std::string> invalid(const SchedulerHello& message) {
    if (message.vocab_size < 1 || message.context_len < 1 || message.page_size < 1 ||
        message.tp < 1) {
        return "vocab_size, context_len, page_size and tp must be positive";
    }
    if (!message.routes) return std::nullopt;
    if (auto problem = invalid(*message.routes)) return problem;
    return invalid_dense_layers(*message.routes, message.dense_layers);
}

}  // namespace pitstop::messages
