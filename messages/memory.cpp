#include "messages/memory.h"

#include "messages/checks.h"
#include "messages/codec_impl.h"

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
    if (auto problem = invalid_tags(message.tags)) return problem;
    return invalid_call(message.call, message.timeout_ms);
}

std::optional<std::string> invalid(const ResumeMemory& message) {
    if (auto problem = invalid_tags(message.tags)) return problem;
    return invalid_call(message.call, message.timeout_ms);
}

INSTANTIATE_CODEC(ReleaseMemory)
INSTANTIATE_CODEC(ResumeMemory)
INSTANTIATE_CODEC(MemoryPart)
INSTANTIATE_CODEC(MemoryReply)
INSTANTIATE_CODEC(WorkerMemory)
INSTANTIATE_CODEC(WorkerMemoryDone)

}  // namespace pitstop::messages
