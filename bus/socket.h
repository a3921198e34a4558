// One end of the bus: a ZeroMQ socket with explicit limits that sends and receives Frames.
//
// Owns:   the socket; the context outlives it.
// Thread: one. Nothing here blocks; a loop waits in Poller::wait only.
#pragma once

#include "base/result.h"
#include "bus/limits.h"
#include "messages/frames.h"

#include <zmq.hpp>

#include <optional>
#include <string>

namespace pitstop {

enum class SocketKind {
    kRouter,  // many peers, each addressed by its identity; sending to one that is gone says so
    kDealer,  // one peer, both ways
    kPull,    // many senders, one way
    kPush,    // one receiver, one way
};

// What arrived: a message, or something that was refused and whom to tell.
struct Received {
    std::string peer{};              // kRouter: the sender's identity; else empty
    Frames frames{};                 // empty if refused
    std::optional<Error> refused{};  // the envelope is not a message, or is over a limit
};

enum class Sent {
    kSent,
    kFull,  // the peer's queue is full: it does not keep up
    kGone,  // no such peer
};

class Socket {
  public:
    // Errors: the endpoint is in use, cannot be made, or is not understood.
    static Result<Socket> bind(
        zmq::context_t& context,
        SocketKind kind,
        const std::string& endpoint,
        const SocketLimits& limits
    );
    // Connecting succeeds before the peer is there; messages wait in the queue.
    static Result<Socket> connect(
        zmq::context_t& context,
        SocketKind kind,
        const std::string& endpoint,
        const SocketLimits& limits
    );

    // The next message that is there, or nothing.
    [[nodiscard]] std::optional<Received> receive();

    // Queues the message whole or not at all. `peer` is for kRouter.
    [[nodiscard]] Sent send(const Frames& frames, const std::string& peer = {});

    // How long a closed socket may still try to deliver what is queued. The default is 0: nothing.
    void set_linger_ms(int linger_ms);

    [[nodiscard]] zmq::socket_t& raw_socket() { return socket_; }

  private:
    Socket(zmq::socket_t socket, SocketKind kind, const SocketLimits& limits)
        : socket_(std::move(socket)), kind_(kind), limits_(limits) {}
    static Result<Socket> open(
        zmq::context_t& context, SocketKind kind, const SocketLimits& limits
    );

    zmq::socket_t socket_;
    SocketKind kind_;
    SocketLimits limits_;
};

}  // namespace pitstop
