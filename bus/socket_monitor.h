// Tells what became of a socket's connections: what the socket itself keeps from its owner.
//
// Owns:    the socket's monitor; both are of one context. Thread: one, that of the socket.
// Bounded: kEventsPerTurnMax per take_events(); what is left comes with the next.
#pragma once

#include "base/result.h"
#include "bus/poller.h"
#include "bus/socket.h"

#include <zmq.hpp>

#include <cstdint>
#include <utility>
#include <vector>

namespace pitstop::bus {

struct SocketEvent {
    enum class Kind : std::uint8_t {
        kDisconnected,  // a connection that was there has ended
        kKeyRefused,    // the other end does not let this key in
    };
    Kind kind = Kind::kDisconnected;
    int connection = -1;  // the descriptor it had: Received::connection
};

class SocketMonitor {
  public:
    static constexpr int kEventsPerTurnMax = 1024;

    // What happened to the socket before is not told. Errors: kInternal.
    static Result<SocketMonitor> open(zmq::context_t& context, Socket& socket);

    // REQUIRES: this monitor stays where it is.
    void add_to(Poller& poller) { poller.add(monitor_); }

    // Returns what has happened since, in order.
    [[nodiscard]] std::vector<SocketEvent> take_events();

  private:
    explicit SocketMonitor(zmq::socket_t monitor) : monitor_(std::move(monitor)) {}

    zmq::socket_t monitor_;
};

}  // namespace pitstop::bus
