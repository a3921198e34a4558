// Adds what every message between a client and a door has besides its own fields: the protocol's
// version is agreed on at `hello`, and the field `tree` names the tree.
//
// A client's socket keeps what it was given while nobody is at the door, and hands it to whoever
// binds the same place next. So every start of a tree draws an identity, which `hello_reply` says;
// every later message names the tree it is for, and another tree refuses it.
#pragma once

#include "base/result.h"
#include "messages/frames.h"

#include <string>
#include <string_view>

namespace pitstop::messages {

// This is the version of `hello` and of everything at the doors. The messages between the tree's
// own processes have a version of their own (kProtocolVersion).
inline constexpr int kDoorProtocolVersion = 2;

// Naming a tree adds at most this many bytes to a message.
inline constexpr std::size_t kTreeFieldBytesMax = 64;

// REQUIRES: encode() made the frames, of a message that has no field `tree`; the text leaves room
// for the field's name in kTreeFieldBytesMax.
void add_tree(Frames& frames, std::string_view tree);

// Takes the field out of bytes from outside; what is left is the message alone. Empty: it is not
// there. Frames that are no message at all are left for decode() to refuse.
// Errors: kInvalidArgument (it is no text, or not UTF-8).
[[nodiscard]] Result<std::string> take_tree(Frames& frames);

}  // namespace pitstop::messages
