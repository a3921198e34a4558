// Adds the field `tree`, which every message between a client and a door has in addition to its own
// fields. (`hello` negotiates the protocol's version.)
//
// A client's socket keeps queued messages while no tree listens at the door, and sends them to the
// next process that binds the endpoint. So every tree draws a new identity at its start, which
// `hello_reply` tells. Every later message names the tree for which it is meant; another tree
// refuses the message.
#pragma once

#include "base/result.h"
#include "messages/frames.h"

#include <string>
#include <string_view>

namespace pitstop::messages {

// The version of `hello` and of all messages at the doors. The messages between the tree's own
// processes have a version of their own (kProtocolVersion).
inline constexpr int kDoorProtocolVersion = 3;

// Naming a tree adds at most this many bytes to a message.
inline constexpr std::size_t kTreeFieldBytesMax = 64;

// REQUIRES: encode() made the frames, from a message without a field `tree`. The name of the tree
// and the name of the field fit into kTreeFieldBytesMax.
void add_tree(Frames& frames, std::string_view tree);

// Removes the field from frames that came from outside, and returns its value; empty if the field
// is absent. Leaves all other bytes unchanged. Leaves frames that are no message unchanged;
// decode() refuses them. Errors: kInvalidArgument (the value is not a text, or not UTF-8).
[[nodiscard]] Result<std::string> take_tree(Frames& frames);

}  // namespace pitstop::messages
