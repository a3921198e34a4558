#include "messages/update_orders.h"

#include "messages/codec_impl.h"

namespace pitstop::messages {

INSTANTIATE_CODEC(UpdateStage)
INSTANTIATE_CODEC(UpdateFill)
INSTANTIATE_CODEC(UpdateFinish)
INSTANTIATE_CODEC(UpdateReady)
INSTANTIATE_CODEC(UpdateCommit)
INSTANTIATE_CODEC(UpdateDrop)
INSTANTIATE_CODEC(UpdateRollback)
INSTANTIATE_CODEC(UpdatePart)
INSTANTIATE_CODEC(UpdateWaits)
INSTANTIATE_CODEC(WorkerStage)
INSTANTIATE_CODEC(WorkerFill)
INSTANTIATE_CODEC(WorkerFilled)
INSTANTIATE_CODEC(WorkerFinish)
INSTANTIATE_CODEC(WorkerStaged)
INSTANTIATE_CODEC(WorkerCommit)
INSTANTIATE_CODEC(WorkerCommitted)
INSTANTIATE_CODEC(WorkerDrop)
INSTANTIATE_CODEC(WorkerDropped)

}  // namespace pitstop::messages
