// Says which call goes to which door, and what answers it. A call is a message with a `call` number
// that is answered once, by its reply or by an `error`.
//
// The doors are two sockets: neither keeps its messages behind those of the other. A call at the
// admin door that is about requests is therefore sent when the data door has read those before it.
#pragma once

#include "messages/control.h"
#include "messages/groups.h"
#include "messages/memory.h"
#include "messages/message_list.h"
#include "messages/status.h"
#include "messages/text_calls.h"
#include "messages/weight_reads.h"
#include "messages/weights.h"

namespace pitstop::messages {

enum class Door { kData, kAdmin };
// Says when a client sends it: at once, or when the data door has read the requests before it.
enum class CallOrder { kAtOnce, kAfterRequests };
// Says what becomes of it while an update is under way. The door refuses it, and not each replica
// for itself: those that have ended the update would take it.
enum class BesideUpdate { kTaken, kRefused };

template <
    class RequestType,
    class ReplyType,
    Door door,
    CallOrder order = CallOrder::kAtOnce,
    BesideUpdate beside_update = BesideUpdate::kTaken>
struct CallRow {
    using Request = RequestType;
    using Reply = ReplyType;
    static constexpr Door kDoor = door;
    static constexpr CallOrder kOrder = order;
    static constexpr BesideUpdate kBesideUpdate = beside_update;
};
template <class... Rows>
struct CallTable : Rows... {
    template <Door door>
    using RequestsAt =
        decltype((MessageList<>{} + ... + ListedIf<Rows::kDoor == door, typename Rows::Request>{}));
    // Lists each request, and each reply after the last request that it answers.
    using Messages = decltype((
        MessageList<typename Rows::Request, typename Rows::Reply>{} | ... | MessageList<>{}
    ));
};

using Calls = CallTable<
    CallRow<Tokenize, TokenizeReply, Door::kData>,
    CallRow<RenderChat, TokenizeReply, Door::kData>,
    CallRow<Status, StatusReply, Door::kAdmin>,
    CallRow<PauseGeneration, PauseReply, Door::kAdmin>,
    CallRow<ContinueGeneration, ContinueReply, Door::kAdmin>,
    CallRow<Abort, AbortReply, Door::kAdmin, CallOrder::kAfterRequests>,
    CallRow<FlushCache, FlushReply, Door::kAdmin>,
    CallRow<SetWeightLabel, LabelReply, Door::kAdmin, CallOrder::kAtOnce, BesideUpdate::kRefused>,
    CallRow<ReleaseMemory, MemoryReply, Door::kAdmin>,
    CallRow<ResumeMemory, MemoryReply, Door::kAdmin>,
    CallRow<Shutdown, ShutdownReply, Door::kAdmin>,
    CallRow<UpdateWeights, UpdateReply, Door::kAdmin>,
    CallRow<StageWeights, UpdateReply, Door::kAdmin>,
    CallRow<BeginUpdate, UpdateReply, Door::kAdmin>,
    CallRow<UpdateBucket, UpdateReply, Door::kAdmin>,
    CallRow<CommitWeights, UpdateReply, Door::kAdmin>,
    CallRow<DropStage, UpdateReply, Door::kAdmin>,
    CallRow<RollbackWeights, UpdateReply, Door::kAdmin>,
    CallRow<GetWeights, WeightsReply, Door::kAdmin>,
    CallRow<WeightDigests, DigestsReply, Door::kAdmin>,
    CallRow<InitGroup, GroupReply, Door::kAdmin>,
    CallRow<DestroyGroup, GroupReply, Door::kAdmin>>;

// Lists what the admin door takes, "hello" apart.
using AdminCalls = Calls::RequestsAt<Door::kAdmin>;

template <class Request, class Reply, auto... columns>
CallRow<Request, Reply, columns...> row_of(const CallRow<Request, Reply, columns...>*);
template <class Request>
using CallOf = decltype(row_of<Request>(static_cast<const Calls*>(nullptr)));
template <class Request>
using ReplyTo = typename CallOf<Request>::Reply;

}  // namespace pitstop::messages
