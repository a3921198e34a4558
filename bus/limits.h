// The bounds of every socket of the tree.
#pragma once

#include <cstddef>

namespace pitstop {

// What a socket takes and holds. A frame over frame_bytes_max ends the connection it came from
// (ZeroMQ's own guard against a peer that never stops); a message over message_bytes_max is refused
// with an answer.
struct SocketLimits {
    std::size_t frame_bytes_max = 0;
    std::size_t message_bytes_max = 0;
    int queue_len_max = 0;  // messages per peer and direction
};

// A door takes prompts, not tensors: 16 MiB is a prompt of some four million tokens.
inline constexpr SocketLimits kDoorLimits{
    .frame_bytes_max = std::size_t{64} << 20,
    .message_bytes_max = std::size_t{16} << 20,
    .queue_len_max = 4096,
};

// Between processes of the tree. Senders check their results: a full queue is an overloaded peer.
inline constexpr SocketLimits kInnerLimits{
    .frame_bytes_max = std::size_t{1} << 30,
    .message_bytes_max = std::size_t{1} << 30,
    .queue_len_max = 65536,
};

// A loop drains at most so many messages per socket and turn, so that no peer can hold it.
inline constexpr int kMessagesPerTurnMax = 1024;

// A unix socket path, with its end, fits sockaddr_un.
inline constexpr std::size_t kSocketPathBytesMax = 107;

}  // namespace pitstop
