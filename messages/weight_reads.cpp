#include "messages/weight_reads.h"

namespace pitstop::messages {

std::optional<std::string> invalid(const GetWeights& message) {
    if (message.name.empty()) return "name is empty; name a tensor of the checkpoint";
    return std::nullopt;
}

}  // namespace pitstop::messages
