#include "messages/weight_reads.h"

#include "messages/codec_impl.h"

namespace pitstop::messages {

std::optional<std::string> invalid(const GetWeights& message) {
    if (message.name.empty()) return "name is empty; name a tensor of the checkpoint";
    return std::nullopt;
}

INSTANTIATE_CODEC(GetWeights)
INSTANTIATE_CODEC(WeightsReply)
INSTANTIATE_CODEC(WeightDigests)
INSTANTIATE_CODEC(DigestsReply)
INSTANTIATE_CODEC(WorkerReadTensor)
INSTANTIATE_CODEC(WorkerTensor)
INSTANTIATE_CODEC(WorkerDigest)
INSTANTIATE_CODEC(WorkerDigests)

}  // namespace pitstop::messages
