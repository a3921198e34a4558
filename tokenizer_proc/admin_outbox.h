// The messages that the admin door sends: orders to replicas and answers to callers.
//
// Thread:  the loop thread only.
// Bounded: one answer per open call.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "messages/codec.h"
#include "messages/greeting.h"
#include "tokenizer_proc/answer_notes.h"
#include "tokenizer_proc/open_calls.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

class AdminOutbox {
  public:
    struct Order {
        std::optional<ReplicaId> replica{};  // absent: all replicas
        messages::Frames frames{};
    };
    struct Answer {
        std::string peer{};  // the client at the admin door
        messages::Frames frames{};
    };

    template <class Message>
    void order(const Message& message, std::optional<ReplicaId> replica = std::nullopt) {
        orders_.push_back({replica, encode(message)});
    }
    template <class Message>
    void answer(const AdminCaller& caller, Message message) {
        message.call = caller.call;
        notes_.add_to(message, caller);
        answers_.push_back({caller.peer, encode(message)});
    }
    void answer_error(const AdminCaller& caller, const Error& error) {
        messages::ErrorReply reply;
        reply.error = error;
        answer(caller, reply);
    }
    // Adds a note to the answer that this caller will get.
    void add_note(const AdminCaller& caller, AnswerNotes::Note note) {
        notes_.add(caller, std::move(note));
    }

    [[nodiscard]] std::vector<Order> take_orders() { return std::exchange(orders_, {}); }
    [[nodiscard]] std::vector<Answer> take_answers() { return std::exchange(answers_, {}); }

  private:
    std::vector<Order> orders_{};
    std::vector<Answer> answers_{};
    AnswerNotes notes_{};
};

}  // namespace pitstop::tokenizer
