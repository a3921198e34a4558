// Every message there is, for what must know them all: the protocol's page and the tests of the
// codec. A test compares this list with the headers.
#pragma once

#include "messages/control.h"
#include "messages/generation.h"
#include "messages/greeting.h"
#include "messages/groups.h"
#include "messages/keep.h"
#include "messages/memory.h"
#include "messages/message_list.h"
#include "messages/push.h"
#include "messages/ranks.h"
#include "messages/status.h"
#include "messages/steps.h"
#include "messages/text_calls.h"
#include "messages/update_orders.h"
#include "messages/weight_reads.h"
#include "messages/weights.h"

namespace pitstop::messages {

// They stand in the order of docs/protocol.md.
using AllMessages = MessageList<
    Hello,
    HelloReply,
    ErrorReply,
    Generate,
    Cancel,
    Outputs,
    Tokenize,
    TokenizeReply,
    RenderChat,
    Status,
    StatusReply,
    PauseGeneration,
    PauseReply,
    ContinueGeneration,
    ContinueReply,
    Abort,
    AbortReply,
    FlushCache,
    FlushReply,
    SetWeightLabel,
    LabelReply,
    ReleaseMemory,
    ResumeMemory,
    MemoryReply,
    Shutdown,
    ShutdownReply,
    UpdateWeights,
    StageWeights,
    BeginUpdate,
    UpdateBucket,
    CommitWeights,
    DropStage,
    RollbackWeights,
    UpdateReply,
    GetWeights,
    WeightsReply,
    WeightDigests,
    DigestsReply,
    InitGroup,
    DestroyGroup,
    GroupReply,
    TokenizedRequest,
    EndRequests,
    TokenBatch,
    TextBatch,
    SchedulerHello,
    ReplicaStatus,
    PausePart,
    ContinuePart,
    FlushPart,
    LabelPart,
    MemoryPart,
    UpdateStage,
    UpdateFill,
    UpdateFinish,
    UpdateReady,
    UpdateCommit,
    UpdateDrop,
    UpdateRollback,
    UpdatePart,
    UpdateWaits,
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
    PushDone>;

}  // namespace pitstop::messages
