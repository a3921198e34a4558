// Bounds every socket of the tree.
#pragma once

#include <cstddef>

namespace pitstop::bus {

// Bounds what a socket takes and holds. A frame over frame_bytes_max ends the connection it came
// from (ZeroMQ's own guard against a peer that never stops); a message over message_bytes_max is
// refused with an answer.
struct SocketLimits {
    std::size_t frame_bytes_max = 0;
    std::size_t message_bytes_max = 0;
    int queue_len_max = 0;  // messages per peer and direction
    // These two are for a socket that listens: a connection over the first is closed at once
    // (bus/listener.h), and so is a peer that has not said who it is within the second.
    int connections_max = 64;
    int handshake_ms = 30'000;
};

// A door takes prompts, not tensors: 16 MiB is a prompt of some four million tokens.
inline constexpr SocketLimits kDoorLimits{
    .frame_bytes_max = std::size_t{64} << 20,
    .message_bytes_max = std::size_t{16} << 20,
    .queue_len_max = 4096,
    .connections_max = 2048,
    .handshake_ms = 10'000,
};

// These are for a door at tcp. What has not shaken hands yet may send a frame, too: hence fewer of
// them, and a frame that is little more than the largest message. Encryption adds 33 bytes to each.
inline constexpr SocketLimits kTcpDoorLimits{
    .frame_bytes_max = kDoorLimits.message_bytes_max + 4096,
    .message_bytes_max = kDoorLimits.message_bytes_max,
    .queue_len_max = kDoorLimits.queue_len_max,
    .connections_max = 512,
    .handshake_ms = 10'000,
};

// These are for sockets between processes of the tree. Senders check their results: a full queue is
// an overloaded peer.
inline constexpr SocketLimits kInnerLimits{
    .frame_bytes_max = std::size_t{1} << 30,
    .message_bytes_max = std::size_t{1} << 30,
    .queue_len_max = 65536,
};

// These are for the door of ranks on other machines: plans and results, parts of meetings, and
// tensors that are read back.
inline constexpr SocketLimits kNodeDoorLimits{
    .frame_bytes_max = kInnerLimits.frame_bytes_max,
    .message_bytes_max = kInnerLimits.message_bytes_max,
    .queue_len_max = kInnerLimits.queue_len_max,
    .handshake_ms = 10'000,
};

inline constexpr int kReplicasMax = 1024;

// An inner socket takes as many connections as it has peers, and this many more: from a client that
// took it for a door, or from a peer that connects again before its old connection has gone.
inline constexpr int kStrayConnectionsMax = 4;

// A loop drains at most so many messages per socket and turn, so that no peer can hold it.
inline constexpr int kMessagesPerTurnMax = 1024;

// A unix socket path, with its end, fits sockaddr_un.
inline constexpr std::size_t kSocketPathBytesMax = 107;

}  // namespace pitstop::bus
