// All messages, for code that must know all of them: the codecs, their tests, and the protocol's
// page. calls.h lists the calls, their replies, and the parts of replies. A test compares the page
// with the headers; the page has every message of these lists.
#pragma once

#include "messages/adapter_moves.h"
#include "messages/adapters.h"
#include "messages/calls.h"
#include "messages/conversations.h"
#include "messages/generation.h"
#include "messages/grammars.h"
#include "messages/greeting.h"
#include "messages/groups.h"
#include "messages/keep.h"
#include "messages/message_list.h"
#include "messages/push.h"
#include "messages/ranks.h"
#include "messages/replica_calls.h"
#include "messages/replica_standing.h"
#include "messages/steps.h"
#include "messages/update_orders.h"
#include "messages/weight_reads.h"

namespace pitstop::messages {

// In the order of docs/protocol.md: the messages of the two doors, then all others.
using DoorMessages = decltype(
    MessageList<Hello, HelloReply, ErrorReply, Generate, Cancel, Outputs>{} + Calls::Messages{}
);
using TreeMessages = decltype(
    MessageList<
        TokenizedRequest,
        EndRequests,
        EndConversations,
        TokenBatch,
        TextBatch,
        SchedulerHello>{} +
    ReplicaParts{} +
    MessageList<
        UpdateStage,
        UpdateFill,
        UpdateFinish,
        UpdateReady,
        UpdateCommit,
        UpdateDrop,
        UpdateRollback,
        UpdatePart,
        UpdateWaits,
        ReplicaStanding,
        RankJoin,
        RankJoined,
        RankPart,
        RankMet,
        RankEnd,
        WorkerHello,
        StepPlan,
        StepResult,
        WorkerError,
        WorkerStage,
        WorkerFill,
        WorkerFilled,
        WorkerFinish,
        WorkerStaged,
        WorkerCommit,
        WorkerCommitted,
        WorkerDrop,
        WorkerDropped,
        WorkerForget,
        WorkerAdapters,
        WorkerNotEvicted,
        WorkerRestored,
        WorkerCompile,
        WorkerCompiled,
        WorkerReadTensor,
        WorkerTensor,
        WorkerDigest,
        WorkerDigests,
        WorkerKeep,
        WorkerKept,
        WorkerMemory,
        WorkerMemoryDone,
        WorkerGroup,
        WorkerGrouped,
        PushOpen,
        PushLayout,
        PushBucket,
        PushShard,
        PushEnd,
        PushDone>{}
);
using AllMessages = decltype(DoorMessages{} + TreeMessages{});

}  // namespace pitstop::messages
