// Adds the field `tree`, which every message between a client and a door has besides its own
// fields. (The protocol's version is agreed on at `hello`.)
//
// A client's socket keeps its queued messages while no tree listens at the door, and sends
// them to the next process that binds the endpoint. So every start of a tree draws a new
// identity, which `hello_reply` has; every later message names the tree that it is for, and
// another tree refuses it.
#pragma once

#include "base/result.h"
#include "messages/frames.h"

#include <string>
#include <string_view>

namespace pitstop::messages {

// The version of `hello` and of everything at the doors. The messages between the tree's own
// processes have a separate version (kProtocolVersion).
inline constexpr int kDoorProtocolVersion = 2;

// Naming a tree adds at most this many bytes to a message.
inline constexpr std::size_t kTreeFieldBytesMax = 64;

// REQUIRES: encode() made the frames, of a message that has no field `tree`; the name is short
// enough to fit, with the field's own name, into kTreeFieldBytesMax.
void add_tree(Frames& frames, std::string_view tree);

// Removes the field from bytes from outside, which leaves the message alone, and returns it. Empty:
// there is no such field. Frames that are no message at all are left for decode() to refuse.
// Errors: kInvalidArgument (it is not a text, or not UTF-8).
[[nodiscard]] Result<std::string> take_tree(Frames& frames);

}  // namespace pitstop::messages
