// The admin door forwards these calls to every replica, and each replica answers with its part of
// the one reply. calls.h determines which calls they are. Doors and schedulers use these lists, so
// a new call only needs a row there.
#pragma once

#include "messages/calls.h"
#include "messages/control_call.h"
#include "messages/message_list.h"
#include "messages/status.h"

namespace pitstop::messages {

// The type of the parts that a reply is made of.
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
