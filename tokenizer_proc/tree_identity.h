// The identity of this tree, and whether a client's message is meant for it.
//
// A client's socket keeps messages while no door listens, and delivers them to the next tree that
// binds the same place. So a pause or an update that its caller has long given up could be run by
// another tree. Therefore every tree has an identity, which only `hello_reply` tells, and every
// message names the tree it is meant for.
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
    // Made of 128 random bits, so that no other tree has or had it.
    TreeIdentity(std::uint64_t high, std::uint64_t low);

    [[nodiscard]] const std::string& id() const { return id_; }
    // Returns the number of this tree's first update or session. The next tree has other numbers,
    // so that a session that outlived its tree cannot be mistaken for one of the next tree.
    [[nodiscard]] messages::UpdateId first_update() const { return first_update_; }
    // Returns whether these bytes, whatever else they are, name another tree.
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
