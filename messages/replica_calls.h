// The calls that the admin door forwards to every replica. Each replica answers with its part of
// the reply. Which calls these are follows from calls.h; doors and schedulers use these lists, so
// that a new call only needs a row there.
#pragma once

#include "messages/calls.h"
#include "messages/control_call.h"
#include "messages/message_list.h"
#include "messages/status.h"

namespace pitstop::messages {

// The type of the parts of a reply.
template <class Reply>
struct PartOfReply {};
template <class Part>
struct PartOfReply<ReplyOf<Part>> {
    using Type = Part;
};
template <>
struct PartOfReply<StatusReply> {
    using Type = ReplicaStatus;
};

template <class Request>
concept AsksReplicas = requires {
    typename PartOfReply<ReplyTo<Request>>::Type;
};
template <AsksReplicas Request>
using PartOf = typename PartOfReply<ReplyTo<Request>>::Type;

template <class... Messages>
constexpr auto replica_calls(MessageList<Messages...>) {
    return (MessageList<>{} + ... + ListedIf<AsksReplicas<Messages>, Messages>{});
}
template <class... Calls>
constexpr auto replica_parts(MessageList<Calls...>) {
    return (MessageList<PartOf<Calls>>{} | ... | MessageList<>{});
}

using ReplicaCalls = decltype(replica_calls(AdminCalls{}));
using ReplicaParts = decltype(replica_parts(ReplicaCalls{}));

}  // namespace pitstop::messages
