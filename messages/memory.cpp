#include "messages/memory.h"

#include "messages/codec_impl.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop {
namespace {

std::optional<std::string> invalid_call(
    CallId call, std::int64_t timeout_ms, const std::vector<MemoryTag>& tags
) {
    if (raw(call) == 0) return "call is 0; choose a number of 1 or more";
    if (timeout_ms < 0) return fmt::format("timeout_ms is {}; accepted is 0 or more", timeout_ms);
    for (const MemoryTag tag : tags) {
        if (std::ranges::count(tags, tag) > 1)
            return fmt::format("tags names {} more than once", name_of(tag));
    }
    return std::nullopt;
}

}  // namespace

std::optional<std::string> invalid(const ReleaseMemory& message) {
    return invalid_call(message.call, message.timeout_ms, message.tags);
}

std::optional<std::string> invalid(const ResumeMemory& message) {
    return invalid_call(message.call, message.timeout_ms, message.tags);
}

INSTANTIATE_CODEC(ReleaseMemory)
INSTANTIATE_CODEC(ResumeMemory)
INSTANTIATE_CODEC(MemoryPart)
INSTANTIATE_CODEC(MemoryReply)
INSTANTIATE_CODEC(WorkerMemory)
INSTANTIATE_CODEC(WorkerMemoryDone)

}  // namespace pitstop
