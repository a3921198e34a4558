#include "messages/memory.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::messages {
namespace {

std::optional<std::string> invalid_tags(const std::vector<MemoryTag>& tags) {
    for (const MemoryTag tag : tags) {
        if (std::ranges::count(tags, tag) > 1)
            return fmt::format("tags names {} more than once", name_of(tag));
    }
    return std::nullopt;
}

}  // namespace

std::optional<std::string> invalid(const ReleaseMemory& message) {
    return invalid_tags(message.tags);
}

std::optional<std::string> invalid(const ResumeMemory& message) {
    return invalid_tags(message.tags);
}

}  // namespace pitstop::messages
