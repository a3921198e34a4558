// Reads the messages of an AdminOutbox in their order.
#pragma once

#include "messages/codec.h"
#include "tokenizer_proc/admin_outbox.h"

#include <gtest/gtest.h>

#include <deque>
#include <iterator>
#include <string>
#include <utility>

namespace pitstop::tokenizer {

class AdminOutboxReader {
  public:
    explicit AdminOutboxReader(AdminOutbox& outbox) : outbox_(outbox) {}

    // The next order, which must be of this type; `to` gets its replica.
    template <class Message>
    Message order(std::optional<ReplicaId>* to = nullptr) {
        fetch();
        return next<Message>(orders_, [&](const AdminOutbox::Order& order) {
            if (to != nullptr) *to = order.replica;
        });
    }
    // The next answer, which must be of this type and for this peer.
    template <class Message>
    Message answer(const std::string& peer = "admin") {
        fetch();
        return next<Message>(answers_, [&](const AdminOutbox::Answer& answer) {
            EXPECT_EQ(answer.peer, peer);
        });
    }
    [[nodiscard]] bool is_empty() {
        fetch();
        return orders_.empty() && answers_.empty();
    }

  private:
    void fetch() {
        std::ranges::move(outbox_.take_orders(), std::back_inserter(orders_));
        std::ranges::move(outbox_.take_answers(), std::back_inserter(answers_));
    }
    template <class Message, class Entry, class Look>
    static Message next(std::deque<Entry>& entries, Look look) {
        EXPECT_FALSE(entries.empty()) << "no " << Message::kType;
        if (entries.empty()) return {};
        const Entry entry = std::move(entries.front());
        entries.pop_front();
        EXPECT_EQ(entry.frames.type, Message::kType);
        if (entry.frames.type != Message::kType) return {};
        look(entry);
        auto decoded = decode<Message>(entry.frames, messages::UnknownFields::kRefuse);
        EXPECT_TRUE(decoded.has_value());
        return decoded ? *std::move(decoded) : Message{};
    }

    AdminOutbox& outbox_;
    std::deque<AdminOutbox::Order> orders_{};
    std::deque<AdminOutbox::Answer> answers_{};
};

}  // namespace pitstop::tokenizer
