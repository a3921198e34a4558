#include "messages/keep.h"

#include "messages/codec_impl.h"

namespace pitstop::messages {

INSTANTIATE_CODEC(WorkerKeep)
INSTANTIATE_CODEC(WorkerKept)

}  // namespace pitstop::messages
