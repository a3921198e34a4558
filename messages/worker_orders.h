// The orders of a scheduler to its ranks, other than plans. Every rank gets the same orders,
// between two plans.
#pragma once

#include "messages/adapters.h"
#include "messages/grammars.h"
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
    WorkerAdapters,
    WorkerCompile,
    WorkerReadTensor,
    WorkerDigest,
    WorkerMemory,
    WorkerGroup,
    WorkerKeep>;

}  // namespace pitstop::messages
