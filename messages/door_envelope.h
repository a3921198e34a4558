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

// REQUIRES: encode() made the frames, from a message without a field `tree`; the name and the
// field's own name fit into kTreeFieldBytesMax.
void add_tree(Frames& frames, std::string_view tree);

// Removes the field from frames that came from outside, and returns its value; empty if the field
// is absent. The rest of the message is unchanged. Frames that are no message are left as they are,
// and decode() refuses them. Errors: kInvalidArgument (the value is not a text, or not UTF-8).
[[nodiscard]] Result<std::string> take_tree(Frames& frames);

}  // namespace pitstop::messages
