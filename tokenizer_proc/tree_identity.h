// The identity of this tree, and the check whether a client's message is meant for this tree.
//
// A client's socket keeps messages while no door listens, and delivers them to the next tree that
// binds the same address. So another tree could run a pause or an update whose caller gave up long
// ago. Therefore every tree has an identity, which only `hello_reply` tells, and every message
// names the tree for which it is meant.
#pragma once

#include "base/result.h"
#include "messages/codec.h"
#include "messages/door_envelope.h"
#include "messages/weights.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::tokenizer {

class TreeIdentity {
  public:
    // The identity has 128 random bits, so no other tree has it or had it.
    TreeIdentity(std::uint64_t high, std::uint64_t low);

    [[nodiscard]] const std::string& id() const { return id_; }
    // Returns the number of this tree's first update or session. The next tree has other numbers,
    // so that none of its sessions can be mistaken for a session of this tree.
    [[nodiscard]] messages::UpdateId first_update() const { return first_update_; }
    // Returns whether these bytes, which may be any message, name another tree.
    [[nodiscard]] bool is_other(const messages::Frames& frames) const;

    // Decodes a client's message that is meant for this tree.
    // Errors: as decode(); kInvalidArgument if it names no tree, kUnavailable if it names another.
    template <class Message>
    [[nodiscard]] Result<Message> read(const messages::Frames& frames) const {
        messages::Frames own = frames;
        ASSIGN_OR_RETURN(const std::string meant, take_tree(own));
        ASSIGN_OR_RETURN(Message message, decode<Message>(own, messages::UnknownFields::kRefuse));
        RETURN_IF_ERROR(check(Message::kType, meant));
        return message;
    }

  private:
    [[nodiscard]] Result<> check(std::string_view type, std::string_view meant) const;

    std::string id_;
    messages::UpdateId first_update_;
};

}  // namespace pitstop::tokenizer
