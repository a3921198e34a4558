// Lists the orders that a scheduler gives to its ranks besides the steps: each rank gets the same
// ones, between two plans.
#pragma once

#include "messages/adapters.h"
#include "messages/groups.h"
#include "messages/keep.h"
#include "messages/memory.h"
#include "messages/message_list.h"
#include "messages/update_orders.h"
#include "messages/weight_reads.h"

namespace pitstop::messages {

using WorkerOrders = MessageList<
    WorkerStage,
    WorkerFill,
    WorkerFinish,
    WorkerCommit,
    WorkerDrop,
    WorkerForget,
    WorkerReadTensor,
    WorkerDigest,
    WorkerMemory,
    WorkerGroup,
    WorkerKeep>;

}  // namespace pitstop::messages
