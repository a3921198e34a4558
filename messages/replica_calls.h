// The admin door passes these calls on to every replica, which each answers with its part of the
// one reply; which calls they are follows from calls.h. Doors and schedulers take and give these
// lists, so a further such call is a row there.
#pragma once

#include "messages/calls.h"
#include "messages/control_call.h"
#include "messages/message_list.h"
#include "messages/status.h"

#include <type_traits>

namespace pitstop::messages {

// Names the type of the parts that a reply is made of.
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

// Returns the list with the message, which is added if it is not in it.
template <class... Messages, class Message>
auto with(MessageList<Messages...> list, MessageList<Message>) {
    if constexpr ((std::is_same_v<Message, Messages> || ...)) {
        return list;
    } else {
        return MessageList<Messages..., Message>{};
    }
}

template <class... Messages>
constexpr auto replica_calls(MessageList<Messages...>) {
    return (
        MessageList<>{} + ... +
        std::conditional_t<AsksReplicas<Messages>, MessageList<Messages>, MessageList<>>{}
    );
}
template <class... Parts>
constexpr auto replica_parts(MessageList<Parts...> parts, MessageList<>) {
    return parts;
}
template <class... Parts, class First, class... Others>
constexpr auto replica_parts(MessageList<Parts...> parts, MessageList<First, Others...>) {
    return replica_parts(with(parts, MessageList<PartOf<First>>{}), MessageList<Others...>{});
}

using ReplicaCalls = decltype(replica_calls(AdminCalls{}));
using ReplicaParts = decltype(replica_parts(MessageList<>{}, ReplicaCalls{}));

}  // namespace pitstop::messages
