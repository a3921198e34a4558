// Which call goes to which door, and what answers it. A call is a message with a `call` number that
// is answered once, by its reply or by an `error`.
//
// The doors are two sockets: neither keeps its messages behind those of the other. A call at the
// admin door that is about requests is therefore sent when the data door has read those before it.
#pragma once

#include "messages/control.h"
#include "messages/groups.h"
#include "messages/memory.h"
#include "messages/status.h"
#include "messages/weight_reads.h"
#include "messages/weights.h"

#include <type_traits>

namespace pitstop::messages {

enum class Door { kData, kAdmin };

template <class Request>
struct CallOf;

#define PITSTOP_CALL(RequestType, ReplyType, door) \
    template <>                                    \
    struct CallOf<RequestType> {                   \
        using Reply = ReplyType;                   \
        static constexpr Door kDoor = Door::door;  \
    };
PITSTOP_CALL(Tokenize, TokenizeReply, kData)
PITSTOP_CALL(RenderChat, TokenizeReply, kData)
PITSTOP_CALL(Status, StatusReply, kAdmin)
PITSTOP_CALL(PauseGeneration, PauseReply, kAdmin)
PITSTOP_CALL(ContinueGeneration, ContinueReply, kAdmin)
PITSTOP_CALL(Abort, AbortReply, kAdmin)
PITSTOP_CALL(FlushCache, FlushReply, kAdmin)
PITSTOP_CALL(SetWeightLabel, LabelReply, kAdmin)
PITSTOP_CALL(ReleaseMemory, MemoryReply, kAdmin)
PITSTOP_CALL(ResumeMemory, MemoryReply, kAdmin)
PITSTOP_CALL(Shutdown, ShutdownReply, kAdmin)
PITSTOP_CALL(UpdateWeights, UpdateReply, kAdmin)
PITSTOP_CALL(StageWeights, UpdateReply, kAdmin)
PITSTOP_CALL(BeginUpdate, UpdateReply, kAdmin)
PITSTOP_CALL(UpdateBucket, UpdateReply, kAdmin)
PITSTOP_CALL(CommitWeights, UpdateReply, kAdmin)
PITSTOP_CALL(DropStage, UpdateReply, kAdmin)
PITSTOP_CALL(RollbackWeights, UpdateReply, kAdmin)
PITSTOP_CALL(GetWeights, WeightsReply, kAdmin)
PITSTOP_CALL(WeightDigests, DigestsReply, kAdmin)
PITSTOP_CALL(InitGroup, GroupReply, kAdmin)
PITSTOP_CALL(DestroyGroup, GroupReply, kAdmin)
#undef PITSTOP_CALL

template <class Request>
using ReplyTo = typename CallOf<Request>::Reply;

enum class CallOrder { kAtOnce, kAfterRequests };

template <class Request>
inline constexpr CallOrder kOrderOf =
    std::is_same_v<Request, Abort> ? CallOrder::kAfterRequests : CallOrder::kAtOnce;

}  // namespace pitstop::messages
