// The door and the reply of each call. A call is a message with a `call` number that is answered
// once, by its reply or by an `error`.
//
// The doors are two independent sockets: messages to one have no order relative to messages to the
// other. So a call at the admin door that concerns requests is sent only after the data door has
// read all earlier requests.
#pragma once

#include "messages/adapters.h"
#include "messages/control.h"
#include "messages/conversations.h"
#include "messages/fence.h"
#include "messages/groups.h"
#include "messages/memory.h"
#include "messages/message_list.h"
#include "messages/status.h"
#include "messages/text_calls.h"
#include "messages/weight_reads.h"
#include "messages/weights.h"

namespace pitstop::messages {

enum class Door { kData, kAdmin };
// When a client sends the call: at once, or after the data door has read all earlier requests.
enum class CallOrder { kAtOnce, kAfterRequests };
// The effect of a call on a collection: calls without a session that become one update
// (docs/weights.md). A refused call that may be a part of the collection ends the collection. Any
// other refused call leaves it unchanged.
enum class OnCollection {
    kNone,       // no effect: the call leaves the serving version as it is
    kJoins,      // adds to the collection
    kPublishes,  // commits the collection, if the call lets generation continue
    kCommits,    // commits the collection, because the caller asks for that
    kDrops,      // discards the collection
    kRefused,    // is refused during a collection; begin_update may replace an idle collection
};
// The door's treatment of the call during an update. The door decides for all replicas, because a
// replica that has ended the update earlier would accept the call.
enum class BesideUpdate {
    kTaken,
    kRefused,
    kWaits,  // for a call of the update that is in progress, as updates do; otherwise refused
};

template <
    class RequestType,
    class ReplyType,
    Door door,
    OnCollection on_collection,
    CallOrder order = CallOrder::kAtOnce,
    BesideUpdate beside_update = BesideUpdate::kTaken>
struct CallRow {
    using Request = RequestType;
    using Reply = ReplyType;
    static constexpr Door kDoor = door;
    static constexpr OnCollection kOnCollection = on_collection;
    static constexpr CallOrder kOrder = order;
    static constexpr BesideUpdate kBesideUpdate = beside_update;
};
template <class... Rows>
struct CallTable : Rows... {
    template <Door door>
    using RequestsAt =
        decltype((MessageList<>{} + ... + ListedIf<Rows::kDoor == door, typename Rows::Request>{}));
    // All requests and replies. A reply comes after the last request that it answers.
    using Messages = decltype((
        MessageList<typename Rows::Request, typename Rows::Reply>{} | ... | MessageList<>{}
    ));
};

using Calls = CallTable<
    CallRow<Tokenize, TokenizeReply, Door::kData, OnCollection::kNone>,
    CallRow<RenderChat, TokenizeReply, Door::kData, OnCollection::kNone>,
    CallRow<DescribeTokenizer, TokenizerReply, Door::kData, OnCollection::kNone>,
    CallRow<Fence, FenceReply, Door::kData, OnCollection::kNone>,
    CallRow<OpenConversation, ConversationReply, Door::kData, OnCollection::kNone>,
    CallRow<CloseConversation, ConversationReply, Door::kData, OnCollection::kNone>,
    CallRow<Status, StatusReply, Door::kAdmin, OnCollection::kNone>,
    CallRow<PauseGeneration, PauseReply, Door::kAdmin, OnCollection::kNone>,
    CallRow<ContinueGeneration, ContinueReply, Door::kAdmin, OnCollection::kPublishes>,
    CallRow<Abort, AbortReply, Door::kAdmin, OnCollection::kNone, CallOrder::kAfterRequests>,
    CallRow<FlushCache, FlushReply, Door::kAdmin, OnCollection::kNone>,
    CallRow<
        SetWeightLabel,
        LabelReply,
        Door::kAdmin,
        OnCollection::kJoins,
        CallOrder::kAtOnce,
        BesideUpdate::kRefused>,
    CallRow<
        UnloadAdapter,
        AdapterReply,
        Door::kAdmin,
        OnCollection::kNone,
        CallOrder::kAfterRequests,
        BesideUpdate::kWaits>,
    CallRow<ReleaseMemory, MemoryReply, Door::kAdmin, OnCollection::kNone>,
    CallRow<ResumeMemory, MemoryReply, Door::kAdmin, OnCollection::kPublishes>,
    CallRow<Shutdown, ShutdownReply, Door::kAdmin, OnCollection::kNone>,
    CallRow<UpdateWeights, UpdateReply, Door::kAdmin, OnCollection::kJoins>,
    CallRow<RefusedPart, UpdateReply, Door::kAdmin, OnCollection::kDrops>,
    CallRow<StageWeights, UpdateReply, Door::kAdmin, OnCollection::kRefused>,
    CallRow<BeginUpdate, UpdateReply, Door::kAdmin, OnCollection::kRefused>,
    CallRow<UpdateBucket, UpdateReply, Door::kAdmin, OnCollection::kJoins>,
    CallRow<CommitWeights, UpdateReply, Door::kAdmin, OnCollection::kCommits>,
    CallRow<DropStage, UpdateReply, Door::kAdmin, OnCollection::kDrops>,
    CallRow<RollbackWeights, UpdateReply, Door::kAdmin, OnCollection::kRefused>,
    CallRow<GetWeights, WeightsReply, Door::kAdmin, OnCollection::kNone>,
    CallRow<WeightDigests, DigestsReply, Door::kAdmin, OnCollection::kNone>,
    CallRow<InitGroup, GroupReply, Door::kAdmin, OnCollection::kNone>,
    CallRow<DestroyGroup, GroupReply, Door::kAdmin, OnCollection::kNone>>;

// The requests that the admin door accepts, except "hello".
using AdminCalls = Calls::RequestsAt<Door::kAdmin>;

template <class Request, class Reply, auto... columns>
CallRow<Request, Reply, columns...> row_of(const CallRow<Request, Reply, columns...>*);
template <class Request>
using CallOf = decltype(row_of<Request>(static_cast<const Calls*>(nullptr)));
template <class Request>
using ReplyTo = typename CallOf<Request>::Reply;

}  // namespace pitstop::messages
