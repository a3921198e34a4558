#include "messages/adapters.h"

#include "messages/checks.h"

#include <fmt/format.h>

namespace pitstop::messages {

std::optional<std::string> invalid_adapter_name(std::string_view name) {
    if (name.empty()) return "the adapter's name is empty; give one";
    if (name.size() > kAdapterNameBytesMax) {
        return fmt::format(
            "the adapter's name has {} bytes; at most {} are accepted",
            name.size(),
            kAdapterNameBytesMax
        );
    }
    return invalid_line("the adapter's name", name);
}

std::optional<std::string> invalid(const UnloadAdapter& message) {
    return invalid_adapter_name(message.name);
}

}  // namespace pitstop::messages
