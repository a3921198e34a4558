// The limits of every socket of the tree.
#pragma once

#include <cstddef>

namespace pitstop::bus {

// The limits of one socket. ZeroMQ itself closes a connection that sends a frame over
// frame_bytes_max, which guards against a peer that never stops. A message over message_bytes_max
// is refused with an answer.
struct SocketLimits {
    std::size_t frame_bytes_max = 0;
    std::size_t message_bytes_max = 0;
    int queue_len_max = 0;  // messages per peer and direction
    // For listening sockets only. A connection beyond connections_max is closed at once
    // (bus/listener.h). A peer that has not greeted within handshake_ms is disconnected.
    int connections_max = 64;
    int handshake_ms = 30'000;
};

// A door accepts prompts, not tensors: 16 MiB is a prompt of about four million tokens.
inline constexpr SocketLimits kDoorLimits{
    .frame_bytes_max = std::size_t{64} << 20,
    .message_bytes_max = std::size_t{16} << 20,
    .queue_len_max = 4096,
    .connections_max = 2048,
    .handshake_ms = 10'000,
};

// For a tcp door. A peer may send a frame before its handshake ends, so there are fewer
// connections, and a frame is little more than the largest message. Encryption adds 33 bytes to
// each frame.
inline constexpr SocketLimits kTcpDoorLimits{
    .frame_bytes_max = kDoorLimits.message_bytes_max + 4096,
    .message_bytes_max = kDoorLimits.message_bytes_max,
    .queue_len_max = kDoorLimits.queue_len_max,
    .connections_max = 512,
    .handshake_ms = 10'000,
};

// For sockets between processes of the tree. Senders check the result of each send: a full queue
// means an overloaded peer.
inline constexpr SocketLimits kInnerLimits{
    .frame_bytes_max = std::size_t{1} << 30,
    .message_bytes_max = std::size_t{1} << 30,
    .queue_len_max = 65536,
};

// For the door of ranks on other machines: plans and results, parts of meetings, and tensors that
// are read back.
inline constexpr SocketLimits kNodeDoorLimits{
    .frame_bytes_max = kInnerLimits.frame_bytes_max,
    .message_bytes_max = kInnerLimits.message_bytes_max,
    .queue_len_max = kInnerLimits.queue_len_max,
    .handshake_ms = 10'000,
};

inline constexpr int kReplicasMax = 1024;

// An inner socket accepts one connection per peer, and this many more. They may be of a client that
// mistook the socket for a door, or of a peer that reconnects before its old connection ends.
inline constexpr int kStrayConnectionsMax = 4;

// The most messages that a loop takes per socket and turn, so that no peer can delay the loop.
inline constexpr int kMessagesPerTurnMax = 1024;

// The longest path, with its terminating zero, that fits sockaddr_un.
inline constexpr std::size_t kSocketPathBytesMax = 107;

}  // namespace pitstop::bus
