#include "messages/push.h"

#include "messages/codec_impl.h"
#include "messages/weights.h"

#include <fmt/format.h>

namespace pitstop {
namespace {

constexpr int kPushProtocol = 1;

}  // namespace

std::optional<std::string> invalid(const PushOpen& message) {
    if (message.protocol == kPushProtocol) return std::nullopt;
    return fmt::format(
        "protocol is {}; this worker speaks push protocol {}", message.protocol, kPushProtocol
    );
}

std::optional<std::string> invalid(const PushBucket& message) {
    if (message.tensors.size() > kManifestMax) {
        return fmt::format(
            "a bucket has {} tensors; at most {} are accepted", message.tensors.size(), kManifestMax
        );
    }
    for (const PushTensor& tensor : message.tensors) {
        if (tensor.name.empty()) return "a tensor without a name";
    }
    return std::nullopt;
}

INSTANTIATE_CODEC(PushOpen)
INSTANTIATE_CODEC(PushLayout)
INSTANTIATE_CODEC(PushBucket)
INSTANTIATE_CODEC(PushShard)
INSTANTIATE_CODEC(PushEnd)
INSTANTIATE_CODEC(PushDone)

}  // namespace pitstop
