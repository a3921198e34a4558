// One end of the bus: a ZeroMQ socket with explicit limits that sends and receives Frames.
//
// Owns:   the socket; the context outlives it.
// Thread: one. Nothing here blocks; a loop waits in Poller::wait only.
#pragma once

#include "base/result.h"
#include "bus/curve_keys.h"
#include "bus/limits.h"
#include "bus/listener.h"
#include "messages/frames.h"

#include <zmq.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::bus {

enum class SocketKind {
    // many peers, each addressed by its identity; sending to a peer that has left reports it
    kRouter,
    kDealer,  // one peer, both ways
    kPull,    // many senders, one way
    kPush,    // one receiver, one way
};

// A received message, or the reason of its refusal and the peer to answer.
struct Received {
    std::string peer{};     // kRouter: the sender's identity; else empty
    std::string key{};      // kRouter: the client's public key; empty: a local client
    std::string address{};  // the numeric address of a client with a key
    int connection = -1;    // kRouter: the descriptor of its connection, for Listener::mark_spoken
    messages::Frames frames{};       // empty if refused
    std::optional<Error> refused{};  // why: the envelope is not a message, or exceeds a limit
};

enum class Sent {
    kSent,
    kFull,  // the peer's queue is full: the peer is too slow
    kGone,  // no such peer
};

class Socket {
  public:
    // Errors: the endpoint is in use, cannot be created, or is not understood.
    static Result<Socket> bind(
        zmq::context_t& context,
        SocketKind kind,
        const std::string& endpoint,
        const SocketLimits& limits
    );
    // A tcp endpoint accepts only peers that know the public key of `secret_key` and that the
    // KeyGuard allows in `domain`.
    // REQUIRES: the context has a KeyGuard as long as any socket receives. Without one, ZeroMQ
    // accepts every key.
    struct CurveServer {
        std::string secret_key{};
        std::string domain{};
    };
    Result<> bind_too(
        const std::string& endpoint, const SocketLimits& limits, const CurveServer& curve
    );
    // Connecting succeeds before the peer exists; messages wait in the queue. A tcp endpoint needs
    // a key.
    static Result<Socket> connect(
        zmq::context_t& context,
        SocketKind kind,
        const std::string& endpoint,
        const SocketLimits& limits,
        const std::optional<ClientKey>& key = std::nullopt
    );

    // Returns the next waiting message, or nothing.
    [[nodiscard]] std::optional<Received> receive();

    // Queues the whole message or nothing. `peer` is for kRouter.
    [[nodiscard]] Sent send(const messages::Frames& frames, const std::string& peer = {});

    // Sets how long a closed socket may still try to deliver queued messages. The default is 0,
    // which loses them.
    void set_linger_ms(int linger_ms);

    // Returns the listeners that the socket is bound to.
    [[nodiscard]] const std::vector<std::unique_ptr<Listener>>& listeners() const {
        return listeners_;
    }

    [[nodiscard]] zmq::socket_t& raw_socket() { return socket_; }

  private:
    Socket(zmq::socket_t socket, SocketKind kind, const SocketLimits& limits)
        : socket_(std::move(socket)), kind_(kind), limits_(limits) {}
    static Result<Socket> open(
        zmq::context_t& context, SocketKind kind, const SocketLimits& limits
    );
    Result<> listen(const std::string& endpoint, const SocketLimits& limits);

    std::vector<std::unique_ptr<Listener>> listeners_{};
    zmq::socket_t socket_;
    SocketKind kind_;
    SocketLimits limits_;
};

}  // namespace pitstop::bus
