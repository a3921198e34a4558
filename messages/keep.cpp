#include "messages/keep.h"

#include "messages/codec_impl.h"

namespace pitstop {

INSTANTIATE_CODEC(WorkerKeep)
INSTANTIATE_CODEC(WorkerKept)

}  // namespace pitstop
