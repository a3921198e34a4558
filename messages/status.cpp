#include "messages/status.h"

#include "messages/codec_impl.h"

namespace pitstop::messages {

INSTANTIATE_CODEC(Status)
INSTANTIATE_CODEC(ReplicaStatus)
INSTANTIATE_CODEC(StatusReply)

}  // namespace pitstop::messages
