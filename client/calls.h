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

namespace pitstop {

enum class Door { kData, kAdmin };

template <class Request>
struct CallOf;

#define PITSTOP_CALL(RequestType, ReplyType, door) \
    template <>                                    \
    struct CallOf<RequestType> {                   \
        using Reply = ReplyType;                   \
        static constexpr Door kDoor = Door::door;  \
    };
PITSTOP_CALL(messages::Tokenize, messages::TokenizeReply, kData)
PITSTOP_CALL(messages::RenderChat, messages::TokenizeReply, kData)
PITSTOP_CALL(messages::Status, messages::StatusReply, kAdmin)
PITSTOP_CALL(messages::PauseGeneration, messages::PauseReply, kAdmin)
PITSTOP_CALL(messages::ContinueGeneration, messages::ContinueReply, kAdmin)
PITSTOP_CALL(messages::Abort, messages::AbortReply, kAdmin)
PITSTOP_CALL(messages::FlushCache, messages::FlushReply, kAdmin)
PITSTOP_CALL(messages::SetWeightLabel, messages::LabelReply, kAdmin)
PITSTOP_CALL(messages::ReleaseMemory, messages::MemoryReply, kAdmin)
PITSTOP_CALL(messages::ResumeMemory, messages::MemoryReply, kAdmin)
PITSTOP_CALL(messages::Shutdown, messages::ShutdownReply, kAdmin)
PITSTOP_CALL(messages::UpdateWeights, messages::UpdateReply, kAdmin)
PITSTOP_CALL(messages::StageWeights, messages::UpdateReply, kAdmin)
PITSTOP_CALL(messages::BeginUpdate, messages::UpdateReply, kAdmin)
PITSTOP_CALL(messages::UpdateBucket, messages::UpdateReply, kAdmin)
PITSTOP_CALL(messages::CommitWeights, messages::UpdateReply, kAdmin)
PITSTOP_CALL(messages::DropStage, messages::UpdateReply, kAdmin)
PITSTOP_CALL(messages::RollbackWeights, messages::UpdateReply, kAdmin)
PITSTOP_CALL(messages::GetWeights, messages::WeightsReply, kAdmin)
PITSTOP_CALL(messages::WeightDigests, messages::DigestsReply, kAdmin)
PITSTOP_CALL(messages::InitGroup, messages::GroupReply, kAdmin)
PITSTOP_CALL(messages::DestroyGroup, messages::GroupReply, kAdmin)
#undef PITSTOP_CALL

template <class Request>
using ReplyTo = typename CallOf<Request>::Reply;

enum class CallOrder { kAtOnce, kAfterRequests };

template <class Request>
inline constexpr CallOrder kOrderOf =
    std::is_same_v<Request, messages::Abort> ? CallOrder::kAfterRequests : CallOrder::kAtOnce;

}  // namespace pitstop
