// Reports events of a socket's connections, because the socket itself does not report them.
//
// Owns:    the socket's monitor; both use the same context. Thread: one, that of the socket.
// Bounded: kEventsPerTurnMax per take_events(); the next call returns the later events.
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
        kDisconnected,  // an established connection ended
        kKeyRefused,    // the other end does not accept this key
    };
    Kind kind = Kind::kDisconnected;
    int connection = -1;  // the connection's descriptor: Received::connection
};

class SocketMonitor {
  public:
    static constexpr int kEventsPerTurnMax = 1024;

    // Events before this call are not reported. Errors: kInternal.
    static Result<SocketMonitor> open(zmq::context_t& context, Socket& socket);

    // REQUIRES: this monitor does not move.
    void add_to(Poller& poller) { poller.add(monitor_); }

    // Returns the events since the last call, in order.
    [[nodiscard]] std::vector<SocketEvent> take_events();

  private:
    explicit SocketMonitor(zmq::socket_t monitor) : monitor_(std::move(monitor)) {}

    zmq::socket_t monitor_;
};

}  // namespace pitstop::bus
