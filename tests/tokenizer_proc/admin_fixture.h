// A caller at the admin door, and the replicas' answers to its orders.
#pragma once

#include "messages/control.h"
#include "tests/tokenizer_proc/doors_fixture.h"

#include <cstdint>
#include <string>

namespace pitstop::tokenizer {

class AdminTest : public DoorsTest {
  protected:
    template <class Message>
    void call(Message message, std::uint64_t number = 5, const std::string& peer = "admin") {
        message.call = CallId{number};
        send(peer, message, messages::Door::kAdmin);
    }
    template <class Message>
    Message order(int replica) {
        return next_to_replica<Message>(replica, ReplicaSocket::kControl);
    }
    template <class Message>
    Message reply(const std::string& peer = "admin") {
        return next_to<Message>(peer, messages::Door::kAdmin);
    }
    // Sends replica 0's answer to an order of the update.
    void update_part(
        messages::UpdateId update, messages::UpdateOrder order, const std::string& label = ""
    ) {
        messages::UpdatePart part;
        part.update = update;
        part.order = order;
        part.ok = true;
        part.state = messages::UpdateState::kServing;
        part.label = label;
        part.digest = "d-" + label;
        from_tree(part);
    }
};

}  // namespace pitstop::tokenizer
