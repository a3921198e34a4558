#include "messages/greeting.h"

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

}  // namespace pitstop::messages
